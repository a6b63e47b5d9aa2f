"""Examples per second of a training: by the number of replicas (strong and weak scaling), and under every strategy.

    python examples/benchmarks/training_speed.py scaling --replicas 1,2,4
    python examples/benchmarks/training_speed.py strategies --epochs 5

Each layout trains in its own process; all are measured in turns. Virtual CPU devices share the cores, so their table
shows what replicas cost, not how they scale. `--devices workers` gives each replica a process and a core of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Mapping, Sequence
from typing import Any

from anatomy import rates_line
from harness.chart import Chart
from harness.machine import about_with_gpus
from harness.measure import TRAINING, Job, Measured, check_work, measure_in_turns
from harness.report import (
    SPEED_COLUMNS,
    Column,
    Report,
    errors_in_a_line,
    figures,
    numbers,
    parsed,
    parser_of,
    present,
    span,
)
from harness.topology import DEVICES, SHARED_NOTE, Hardware, Topology, check, for_comparison

SCALING_COLUMNS = (
    *(Column("scaling", "scaling"), Column("replicas", "replicas", "d")),
    *(Column("global_batch_size", "global batch", "d"), *SPEED_COLUMNS),
    *(Column("speedup", "speed-up", ".2f"), Column("efficiency", "efficiency", ".0%")),
    Column("overhead", "overhead", ".1%"),
)
_STRATEGIES_COLUMNS = (
    *(Column("strategy", "strategy"), Column("device", "device"), Column("replicas", "replicas", "d"), *SPEED_COLUMNS),
    *(Column("ratio", "to one device", ".2f"), Column("accuracy", "accuracy", ".4f")),
)
_Y_LABEL = "examples/s (median, range)"


def scaling(
    *,
    model: str = "mnist_cnn",
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    global_batch_size: int = 256,
    devices: str | None = None,
    replicas: Sequence[int] | None = None,
    mode: str = "both",
    repeats: int = 5,
    epochs: int = 1,
    resident: bool = True,
) -> Report:
    """Train on 1, 2, ... replicas, each layout in its own process, in turns.

    Strong scaling fixes the global batch, weak scaling the batch of a replica. Speed-up is the ratio of examples per
    second to those of one replica, by medians over the repeats. Efficiency is speed-up divided by the number of
    replicas (Gustafson 1988, https://doi.org/10.1145/42411.42415, for weak scaling). Where replicas share hardware, as
    virtual CPU devices do, the report has the overhead instead: how many times longer the same examples take, minus
    one.

    Args:
        model: a name from `mk.models`, or "module:function" of a function that returns a Keras model with logits.
        data, data_dir: as in `mk.data.load`; "auto" is MNIST where it is found, else the synthetic set.
        examples: use at most this many training examples.
        global_batch_size: in weak scaling, that of one replica.
        devices: "cpu" (virtual devices), "gpu", or "workers" (processes of one core each); by default GPUs if there are
            any.
        replicas: numbers of replicas; 1 is always measured.
        mode: "strong", "weak" or "both".
        repeats: measurements of each layout, after the warm-up.
        epochs: of one measurement.
        resident: keep the data on the devices (`mk.data.resident`); otherwise tf.data makes the batches. For workers
            with tf.data, the report also has each one's input rate: that of its pipeline alone, without training.

    Raises:
        MirrorkitError: one replica could not be measured. Another layout that fails is a row with an error.
        ArgumentError: no such devices, model or number of replicas, or nothing to measure.
    """
    check_work(model, repeats=repeats, epochs=epochs, global_batch_size=global_batch_size, examples=examples)
    machine = about_with_gpus()
    hardware = Hardware.of(machine)
    devices = hardware.device(devices)
    replicas = replicas or hardware.counts(devices)
    check(devices, replicas)
    several = sorted({*replicas} - {1})
    keys = [("baseline", 1, global_batch_size)]
    keys += [("strong", n, global_batch_size) for n in several if mode != "weak"]
    keys += [("weak", n, n * global_batch_size) for n in several if mode != "strong"]
    training = {"model": model, "data": data, "data_dir": data_dir, "examples": examples, "resident": resident}
    trained = {(scale, n, size): (Topology.of(devices, n), size) for scale, n, size in keys}
    found, what = _trained(trained, training, repeats=repeats, epochs=epochs)
    shared = {n for n in several if hardware.is_shared(devices, n)}
    rows = compare(found, shared)
    title = f"Scaling of {what}, {devices}"
    notes = [*[SHARED_NOTE] * bool(shared), *_rates(rows, "scaling")]
    return Report("scaling", title, SCALING_COLUMNS, rows, _chart(title, rows), notes, machine)


def strategies(
    *,
    model: str = "mnist_cnn",
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    global_batch_size: int = 256,
    devices: str | None = None,
    replicas: Sequence[int] | None = None,
    epochs: int = 5,
    resident: bool = True,
) -> Report:
    """Train the same model for the same epochs under every strategy, an epoch of each in turns.

    Args:
        model, data, data_dir, examples, resident: as in `scaling`.
        global_batch_size: over all replicas together.
        devices: "cpu" (virtual devices, and workers as far as there are cores), "gpu" (and the CPU beside them), or
            "workers" (processes of one core each, also with a parameter server); by default GPUs if there are any.
        replicas: numbers of replicas to measure besides one device.
        epochs: epochs of each strategy. Its speed is their median; its accuracy is on the test set after the last one.

    Raises:
        MirrorkitError: one device could not be measured. Another strategy that fails is a row with an error.
        ArgumentError: no such devices, model or number of replicas, or nothing to measure.
    """
    check_work(model, epochs=epochs, global_batch_size=global_batch_size, examples=examples)
    machine = about_with_gpus()
    hardware = Hardware.of(machine)
    devices = hardware.device(devices)
    layouts = for_comparison(devices, replicas or hardware.counts(devices), cores=hardware.cores)
    training = {"model": model, "data": data, "data_dir": data_dir, "examples": examples, "resident": resident}
    trained = {layout: (layout, global_batch_size) for layout in layouts}
    # No warm-up: the loop has compiled, and another epoch would train the model further than `epochs` says.
    found, what = _trained(trained, training, repeats=epochs, epochs=1, warm_up=0, evaluate=True)
    rows: list[dict[str, Any]] = []
    for layout, measured in found.items():
        row: dict[str, Any] = {"strategy": layout.kind, "device": layout.device, "replicas": layout.replicas}
        row |= figures(measured.speeds, measured.error, measured.input_rates)
        if measured.error is None:
            row |= {"ratio": row["median"] / (rows[0] if rows else row)["median"], "accuracy": measured.accuracy}
        rows.append(row)
    title = f"Strategies: {what}, {devices}, global batch {global_batch_size}, {epochs} epochs"
    shared = any(hardware.is_shared(layout.device, layout.replicas) for layout in layouts)
    aside = {"gpu": "cpu"}.get(devices)  # the CPU beside GPUs
    names = [f"{row['strategy']} x{row['replicas']}" + " (CPU)" * (row["device"] == aside) for row in rows]
    speeds, spans = {"speed": [row.get("median") for row in rows]}, {"speed": [span(row) for row in rows]}
    chart = Chart(f"{model}, global batch {global_batch_size}", names, speeds, spans, y_label=_Y_LABEL, bars=True)
    chart.beside, chart.beside_label = [row.get("accuracy") for row in rows], "test accuracy"
    notes = [*[SHARED_NOTE] * shared, *_rates(rows, "strategy")]
    return Report("strategies", title, _STRATEGIES_COLUMNS, rows, chart, notes, machine)


def _trained(
    layouts: Mapping[Any, tuple[Topology, int]], training: Mapping[str, Any], **turns: Any
) -> tuple[dict[Any, Measured], str]:
    """Train each layout with its global batch size; return what was measured, and what was trained in words."""
    jobs = {
        key: Job(TRAINING, layout, {**training, "global_batch_size": size}) for key, (layout, size) in layouts.items()
    }
    # A set on the devices is read at once.
    found = measure_in_turns(jobs, needs_first=True, inputs=not training["resident"], **turns)
    facts = next(iter(found.values())).facts
    return found, f"{training['model']} on {facts['examples']:,} images of {facts['data']}"


def compare(found: Mapping[tuple[str, int, int], Measured], shared: Container[int]) -> list[dict[str, Any]]:
    """Rows of the table, the first one being the baseline; where that failed, without a comparison.

    `found` is by scaling, replicas and global batch size; `shared` holds the numbers of replicas that share hardware.
    """
    rows: list[dict[str, Any]] = []
    for (scale, n, size), measured in found.items():
        row: dict[str, Any] = {"scaling": scale, "replicas": n, "global_batch_size": size}
        row |= figures(measured.speeds, measured.error, measured.input_rates)
        base = (rows[0] if rows else row).get("median")
        if "median" in row and base is not None:
            faster = row["median"] / base
            row |= {"overhead": 1 / faster - 1} if n in shared else {"speedup": faster, "efficiency": faster / n}
        rows.append(row)
    return rows


def _rates(rows: Sequence[dict[str, Any]], name: str) -> list[str]:
    """A line for each row of several workers whose inputs were measured alone."""
    return [
        rates_line(f"Input alone of {row[name]} x{row['replicas']}", row["input_rates"], row["median"])
        for row in rows
        if "input_rates" in row
    ]


def _chart(title: str, rows: Sequence[dict[str, Any]]) -> Chart:
    places = sorted({row["replicas"] for row in rows})
    series: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for scale in ("strong", "weak"):
        own = {row["replicas"]: row for row in rows if row["scaling"] in (scale, "baseline") and "values" in row}
        if any(row["scaling"] == scale for row in own.values()):
            series[scale] = [own.get(n, {}).get("median") for n in places]
            ranges[scale] = [span(own.get(n, {})) for n in places]
    return Chart(title, [str(n) for n in places], series, ranges, "replicas", _Y_LABEL)


def parse() -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the options, and those of them that `scaling` or `strategies` takes."""
    parser = parser_of(__doc__)
    parser.add_argument("benchmark", choices=list(BENCHMARKS))
    parser.add_argument("--mode", choices=["strong", "weak", "both"], help="of scaling; both by default")
    parser.add_argument("--repeats", type=int, help="of scaling: measurements of each layout, in turns (5)")
    parser.add_argument("--epochs", type=int, help="of one measurement of scaling (1); of strategies in all (5)")
    parser.add_argument("--model", default="mnist_cnn", help="a name of the zoo, or module:function")
    parser.add_argument("--data", choices=["auto", "mnist", "cifar10", "synthetic"], default="auto")
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--examples", type=int, help="take no more training examples")
    parser.add_argument("--global-batch-size", type=int, default=256, help="of one replica in weak scaling")
    parser.add_argument("--devices", choices=DEVICES, help="GPUs where there are any")
    parser.add_argument("--replicas", type=numbers, metavar="N,...", help="such as 1,2,4")
    parser.add_argument("--streamed", dest="resident", action="store_false", help="tf.data makes the batches")
    options = parsed(parser)
    own = vars(options).items()
    given = {name: value for name, value in own if value is not None and name not in ("benchmark", "json", "plot")}
    if options.benchmark == "strategies" and given.keys() & {"mode", "repeats"}:
        parser.error("--mode and --repeats are options of scaling; strategies measures each of its --epochs")
    return options, given


BENCHMARKS = {"scaling": scaling, "strategies": strategies}


def main() -> None:
    options, given = parse()
    with errors_in_a_line():
        present(BENCHMARKS[options.benchmark](**given), options)


if __name__ == "__main__":
    main()
