"""How training speed changes with the number of replicas: strong and weak scaling."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from mirrorkit.bench.chart import Chart
from mirrorkit.bench.layout import SHARED_NOTE, Hardware, for_scaling
from mirrorkit.bench.measure import Measured, about_with_gpus, train_in_turns
from mirrorkit.bench.report import Column, Report, summary
from mirrorkit.errors import StrategyError

MODES = ("strong", "weak", "both")

_COLUMNS = (
    Column("scaling", "scaling"),
    Column("replicas", "replicas", "d"),
    Column("global_batch_size", "global batch", "d"),
    Column("median", "examples/s", ",.0f"),
    Column("best", "best", ",.0f"),
    Column("n", "n", "d"),
    Column("spread", "spread", ".0%"),
    Column("speedup", "speed-up", ".2f"),
    Column("efficiency", "efficiency", ".0%"),
    Column("overhead", "overhead", ".1%"),
)


def scaling(
    *,
    model: str = "mnist_cnn",
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    batch_size: int = 256,
    device: str | None = None,
    replicas: Sequence[int] | None = None,
    mode: str = "both",
    repeats: int = 5,
    epochs: int = 1,
    resident: bool = True,
) -> Report:
    """Train on 1, 2, ... replicas, each layout in a process of its own, in turns.

    Strong scaling keeps the global batch, weak scaling the batch of a replica. Speed-up is examples per second against
    one replica, medians over the repeats; efficiency is that by the number of replicas (Gustafson 1988,
    https://doi.org/10.1145/42411.42415, for weak scaling). Where replicas share hardware, as virtual CPU devices do,
    there is an overhead instead: how many times longer the same examples take, less one.

    Args:
        model: a name of the zoo, or "module:function" of a function that returns a Keras model with logits.
        data, data_dir: as in `mk.data.load`; "auto" is MNIST where it is found, else the synthetic set.
        examples: take no more training examples.
        batch_size: global batch size of strong scaling, and of one replica in weak scaling.
        device: "cpu" (virtual devices), "gpu", or "workers" (processes of one core each); GPUs where there are any.
        replicas: numbers of them; 1 is always measured.
        mode: "strong", "weak" or "both".
        repeats: measurements of each layout, after the warm-up.
        epochs: of one measurement.
        resident: whether the data lies on the devices (`mk.data.resident`), or tf.data makes the batches.

    Raises:
        MirrorkitError: one replica could not be measured. Another layout that fails is a row with an error.
        StrategyError: no such device, mode or number of replicas.
    """
    machine = about_with_gpus()
    hardware = Hardware.of(machine)
    device = hardware.device(device)
    if mode not in MODES:
        raise StrategyError(f"mode={mode!r} was asked for; there are {', '.join(map(repr, MODES))}.")
    layouts = for_scaling(device, replicas or hardware.counts(device))
    jobs = {("baseline", 1, batch_size): (layouts[1], batch_size)}
    for scale in ("strong", "weak"):
        for n, layout in layouts.items():
            if n > 1 and mode in (scale, "both"):
                size = batch_size * n if scale == "weak" else batch_size
                jobs[scale, n, size] = layout, size
    found = train_in_turns(
        jobs,
        repeats=repeats,
        epochs=epochs,
        warm_up=1,
        **{"model": model, "data": data, "data_dir": data_dir, "examples": examples, "resident": resident},
    )
    shared = {n for n in layouts if hardware.is_shared(device, n)}
    rows = compare(found, shared)
    trained = found["baseline", 1, batch_size].facts
    title = f"Scaling of {model} on {trained['examples']:,} images of {trained['data']}, {device}"
    return Report("scaling", title, _COLUMNS, rows, _chart(title, rows), [SHARED_NOTE] * bool(shared), machine)


def compare(found: Mapping[tuple[str, int, int], Measured], shared: Container[int]) -> list[dict[str, Any]]:
    """Rows of the table, the first one being the baseline; where that failed, without a comparison.

    Args:
        found: by scaling, replicas, global batch size.
        shared: the numbers of replicas that share hardware.
    """
    rows: list[dict[str, Any]] = []
    for (scale, n, batch_size), measured in found.items():
        row: dict[str, Any] = {"scaling": scale, "replicas": n, "global_batch_size": batch_size}
        if measured.error is None:
            row |= {"values": measured.speeds, "n": len(measured.speeds), **summary(measured.speeds)}
            base = (rows[0] if rows else row).get("median")
            if base is not None:
                faster = row["median"] / base
                row |= {"overhead": 1 / faster - 1} if n in shared else {"speedup": faster, "efficiency": faster / n}
        else:
            row["error"] = measured.error
        rows.append(row)
    return rows


def _chart(title: str, rows: Sequence[dict[str, Any]]) -> Chart:
    places = sorted({row["replicas"] for row in rows})
    series: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for scale in ("strong", "weak"):
        own = {row["replicas"]: row for row in rows if row["scaling"] in (scale, "baseline") and "values" in row}
        if any(row["scaling"] == scale for row in own.values()):
            series[scale] = [own[n]["median"] if n in own else None for n in places]
            spans = {n: (min(row["values"]), max(row["values"])) for n, row in own.items()}
            ranges[scale] = [spans.get(n) for n in places]
    return Chart(title, [str(n) for n in places], series, ranges, "replicas", "examples/s (median, range)")
