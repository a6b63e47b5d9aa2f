"""Measure a machine with GPUs in one run of limited time, the most telling figures first.

    python examples/benchmarks/gpu.py --minutes 20 --json gpu.json
    python examples/benchmarks/gpu.py --devices cpu --models linear      # a rehearsal, on very little work

All devices are verified first. One GPU: `Loop` against Keras's `fit`, with XLA and without, resident and streaming
data, float32 and mixed precision. The GPU is also split into 2 and 4 logical GPUs. Several GPUs: strong and weak
scaling, and their all-reduces. N GPUs against one: how far the weights are apart after 20 steps. Everything runs in its
own processes; speeds are measured in turns. What fails or runs out of time is a row with an error. --json is written
after each group of rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from all_reduce import COLUMNS as ALL_REDUCE_COLUMNS
from harness.chart import Chart
from harness.machine import about_with_gpus, in_a_line
from harness.measure import LEFT_OUT, Budget, Job, Measured, check_work, measure_in_turns
from harness.processes import Group, Member
from harness.report import (
    SPEED_COLUMNS,
    Column,
    Report,
    errors_in_a_line,
    figures,
    names,
    parsed,
    parser_of,
    present,
    table,
)
from on_gpus.plan import NO_GPU, PlannedRows, plan, set_for
from training_speed import SCALING_COLUMNS, compare

from mirrorkit.arguments import is_whole
from mirrorkit.errors import ArgumentError, DeviceError, MirrorkitError

_PROCESSES = "on_gpus.processes"
MODELS = "mnist_cnn", "resnet20"
PARTS = "one device", "precision", "scaling", "equivalence", "all-reduce"
NOTES = (
    "fit is Keras's own, without a strategy, on one dataset for all epochs; its default, jit_compile='auto', turns XLA "
    "on where there is a GPU. In float32, a GPU that has TF32 rounds to it in convolutions and products.",
    "Logical GPUs are parts of one GPU: they show what replicas cost (overhead), not how they scale.",
)
REHEARSAL = "A rehearsal on virtual CPU devices, on very little work: its speeds say nothing, of CPUs or of GPUs."

_OF_FIT = (
    *(Column("model", "model"), Column("what", "what"), *SPEED_COLUMNS, Column("xla", "XLA")),
    *(Column("to_fit", "to fit", ".2f"), Column("to_fit_no_xla", "to fit, no XLA", ".2f")),
)
_COLUMNS: dict[str, Sequence[Column]] = {
    "one device": _OF_FIT,
    "precision": _OF_FIT[:-1],
    "scaling": (Column("model", "model"), Column("on", "on"), *SCALING_COLUMNS),
    "equivalence": (
        *(Column("on", "on"), Column("replicas", "replicas", "d"), Column("tf32", "TF32"), Column("n", "steps", "d")),
        *(Column("difference", "difference", ".1e"), Column("control", "rounding alone", ".1e")),
        *(Column("within", "within 3 times that"), Column("copies_agree", "copies agree")),
    ),
    "all-reduce": [column for column in ALL_REDUCE_COLUMNS if column.key != "best"],
}


class GpuReport(Report):
    """A report with a table for each part."""

    def __str__(self) -> str:
        """The title, the machine, what was verified, the tables and the notes."""
        lines = [self.title, in_a_line(self.about), self.about["verified"]]
        for part in dict.fromkeys(row["part"] for row in self.rows):
            rows = [row for row in self.rows if row["part"] == part]
            lines += ["", part, table(_COLUMNS[part], rows)]
        return "\n".join([*lines, "", *self.notes])


def gpu(
    *,
    minutes: float = 20.0,
    devices: str = "gpu",
    models: Sequence[str] = MODELS,
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    global_batch_size: int | None = None,
    repeats: int | None = None,
    parts: Sequence[str] = PARTS,
    each: Callable[[Report], Any] | None = None,
) -> Report:
    """Measure a machine with one GPU or several within `minutes`.

    Args:
        minutes: the total time; each group of rows gets a share and leaves unused time to the next ones.
        devices: "gpu", or "cpu" for a short rehearsal on virtual CPU devices as if they were two GPUs.
        models: names from `mk.models`. MNIST is for mnist_cnn, mlp and linear; CIFAR-10 for the others.
        data: "auto" takes the real sets where they are found, "synthetic" draws images of their size.
        data_dir: as in `mk.data.load`.
        examples: use at most this many training examples; 64 in a rehearsal.
        global_batch_size: 256, in a rehearsal 16. In weak scaling, that of one replica.
        repeats: measurements of each speed; 5, in a rehearsal 1.
        parts: the parts of the report: "one device", "precision", "scaling", "equivalence", "all-reduce".
        each: called with the report so far, after each group of rows.

    Raises:
        DeviceError: there is no GPU, or a device computes wrong results.
        ArgumentError: an invalid argument.
    """
    rehearsed = devices == "cpu"
    check_work(*models, repeats=repeats, global_batch_size=global_batch_size, examples=examples)
    examples, size = examples or (64 if rehearsed else None), global_batch_size or (16 if rehearsed else 256)
    repeats = repeats or (1 if rehearsed else 5)
    if not (minutes > 0 and models and parts and set(parts) <= set(PARTS)):
        raise ArgumentError(
            f"gpu(minutes={minutes!r}, models={models!r}, parts={parts!r}) was asked for. It takes minutes above 0, "
            f"one model or more, and one or more of the parts {', '.join(map(repr, PARTS))}."
        )
    if examples is not None and examples < size:
        raise ArgumentError(f"examples={examples} do not make one batch of global_batch_size={size}: take more.")
    budget = Budget(60 * minutes)
    machine = about_with_gpus()
    if not rehearsed and not machine["gpus"]:
        raise DeviceError(
            "TensorFlow finds no GPU to measure: `python -m mirrorkit devices --require gpu` says why; rehearse the "
            "command here with --devices cpu."
        )
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder, ThreadPoolExecutor() as pool:
        verified = pool.submit(_verify, devices, budget)
        sets = {name: str(Path(folder, f"{name}.npz")) for name in dict.fromkeys(map(set_for, models))}
        with Group(_PROCESSES, Member(environment=NO_GPU), timeout=budget.left) as preparation:
            how = {"data_dir": data_dir, "examples": examples, "synthetic": data == "synthetic"}
            facts = {name: preparation.call("write", path=path, name=name, **how) for name, path in sets.items()}
        machine["verified"] = verified.result()
        planned = plan(devices, 2 if rehearsed else len(machine["gpus"]), models, sets, size)
        groups = [group for group in planned if group.part in parts]
        what = " and ".join(f"{fact['examples']:,} images of {fact['data']}" for fact in facts.values())
        on = "virtual CPU devices" if rehearsed else ", ".join(machine["gpus"])
        title = f"{' and '.join(models)} on {what}, global batch {size}, {on}"
        report = GpuReport("gpu", title, (), [], _chart([]), [*[REHEARSAL] * rehearsed, *NOTES], machine)
        for number, group in enumerate(groups):
            seconds = budget.left * len(group.jobs) / sum(len(later.jobs) for later in groups[number:])
            report.rows += measure(group, budget, seconds=seconds, repeats=repeats)
            report.chart = _chart(report.rows)
            if each is not None:
                each(report)
    machine["minutes_taken"] = minutes - budget.left / 60
    late = sum(row.get("error") == LEFT_OUT for row in report.rows)
    report.notes = [*report.notes, *[f"{late} rows were left out: they did not fit into {minutes:g} min."] * bool(late)]
    return report


def measure(group: PlannedRows, budget: Budget, *, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of a group; what fails or finds no time has an error."""
    common = {"part": group.part, **group.common}
    if group.part in ("equivalence", "all-reduce"):
        return [{**common, **row} for name, job in group.jobs.items() for row in _rows_of(name, job, budget)]
    found = measure_in_turns(group.jobs, budget=budget, seconds=seconds, repeats=repeats, together=True)
    if group.part == "scaling":
        return [{**common, **row} for row in compare(found, group.shared)]
    return [{**common, **row} for row in against_fit(found)]


def _rows_of(name: Any, job: Job, budget: Budget) -> list[dict[str, Any]]:
    own = {"replicas": name} if is_whole(name) else {}
    if budget.slowest > budget.left:
        return [{**own, "error": LEFT_OUT}]
    try:
        (member,) = job.members
        with Group(_PROCESSES, member, timeout=budget.patience) as remote:
            return [{**own, **row} for row in remote.call(job.target, **member.arguments)]
    except MirrorkitError as error:
        return [{**own, "error": str(error)}]


def against_fit(found: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """Rows with the median speed as a multiple of Keras's `fit`, with its default and without XLA."""
    rows = [{"what": name, **figures(m.speeds, m.error), **({} if m.error else m.facts)} for name, m in found.items()]
    medians = {row["what"]: row["median"] for row in rows if "median" in row}
    for key, rival in {"to_fit": "fit", "to_fit_no_xla": "fit, no XLA"}.items():
        for row in rows:
            if rival in medians and "median" in row:
                row[key] = row["median"] / medians[rival]
    return rows


def _verify(device: str, budget: Budget) -> str:
    # In another process: this one would hold the GPUs' memory from then on.
    with Group(_PROCESSES, Member(environment={} if device == "gpu" else NO_GPU), timeout=budget.left) as remote:
        answer = remote.call("verify", require=device)
    if "error" in answer:
        raise DeviceError(answer["error"])
    return answer["verified"]


def _chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """How many times as fast as one device."""
    rows = [row for row in rows if row["part"] == "scaling" and "median" in row]
    places = sorted({row["replicas"] for row in rows})
    speeds: dict[str, dict[int, float]] = {}
    for one in (row for row in rows if row["scaling"] == "baseline"):
        for row in rows:
            if (row["model"], row["on"]) == (one["model"], one["on"]) and row is not one:
                name = f"{row['model']}, {row['scaling']}" + (", logical" if "logical" in row["on"] else "")
                speeds.setdefault(name, {1: 1.0})[row["replicas"]] = row["median"] / one["median"]
    series = {name: [by_place.get(n) for n in places] for name, by_place in speeds.items()}
    return Chart("Scaling", [str(n) for n in places], series, x_label="replicas", y_label="times one device")


def progress(json: str | None) -> Callable[[Report], None]:
    """Report each part on stderr, and save the figures so far: a borrowed machine may be taken away."""
    start = time.monotonic()

    def tell(report: Report) -> None:
        last = report.rows[-1]
        of = ", ".join(str(last[key]) for key in ("part", "model") if key in last)
        print(f"{(time.monotonic() - start) / 60:.1f} min: {of}", file=sys.stderr, flush=True)
        if json:
            report.save_json(json)

    return tell


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for all; what no longer fits is left out")
    parser.add_argument("--devices", choices=["gpu", "cpu"], default="gpu", help="cpu: a rehearsal on little work")
    parser.add_argument("--models", type=names, metavar="NAME,...", default=MODELS, help=",".join(MODELS))
    parser.add_argument("--data", choices=["auto", "synthetic"], default="auto", help="synthetic: no real images")
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--examples", type=int, help="take no more training examples")
    parser.add_argument("--global-batch-size", type=int, help="of one replica in weak scaling (256)")
    parser.add_argument("--repeats", type=int, help="measurements of each speed, in turns (5)")
    parser.add_argument("--parts", type=names, metavar="NAME,...", default=PARTS, help="such as equivalence,scaling")
    return parsed(parser)


def main() -> None:
    options = parse()
    given = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
    with errors_in_a_line():
        present(gpu(**given, each=progress(options.json)), options)


if __name__ == "__main__":
    main()
