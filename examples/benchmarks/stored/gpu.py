"""The tables of the runs on a GPU: of gpu.py, and of kinds_of_work.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.report import span

from stored.kinds import found
from stored.runs import Run
from stored.tables import machine, number, spread, table, times, under

_XLA = {False: "", True: "yes", "auto": "by default", "step": "of the step", "loop": "of whole calls"}


def one_device(run: Run) -> list[str]:
    lines = []
    for row in run.rows:
        if row["part"] == "one device":
            fit = run.row(part="one device", model=row["model"], what="fit")
            ratio = times(row["median"] / fit["median"])
            lines.append([row["model"], row["what"], _XLA[row["xla"]], number(row["median"]), spread(row), ratio])
    head = ["model", "trained by", "XLA", "images/s, median", "range", "it / `fit`"]
    return [*table(head, lines), *under(run, "turns each"), *machine(run)]


def equivalence(run: Run) -> list[str]:
    rows = [row for row in run.content["rows"] if row["part"] == "equivalence"]
    lines = [
        [
            str(row["replicas"]),
            *(f"{row[key]:.1e}" for key in ("difference", "control")),
            "yes" if row["tf32"] else "no",
        ]
        for row in rows
    ]
    head = ["logical GPUs", "difference from one", "rounding alone", "TF32"]
    steps = " or ".join(str(n) for n in sorted({row["n"] for row in rows}))
    return [*table(head, lines), "", f"After {steps} steps; `{run.command}`", *machine(run)]


def recommender(run: Run) -> list[str]:
    names = {
        "loop": "**`Loop`**",
        "loop, XLA": "`Step(jit_compile=True)`",
        "loop, rows": "`Step(sparse_embeddings=True)`",
        "fit": "`fit`, which XLA compiles",
    }
    lines = []
    for contender, name in names.items():
        row = run.row(contender=contender, measured="step", work="recommender")
        low, high = span(row)
        lines.append([name, f"{1000 * row['median']:.2f}", f"{1000 * low:.2f} to {1000 * high:.2f}"])
    return [*table(["trained by", "ms of a step, median", "range"], lines), *under(run, "epochs each"), *machine(run)]


def kinds(*runs: Run) -> list[str]:
    """A step of each kind of work, beside fit."""
    lines = []
    for run in runs:
        for work in dict.fromkeys(row["work"] for row in run.rows):
            loop, asked, fit = (
                found(run, work=work, replicas=1, contender=name, measured="step")
                for name in ("loop", "loop, XLA", "fit")
            )
            lines.append([work, *map(milliseconds, (loop, asked, fit)), times(loop["median"] / fit["median"])])
    head = ["work", "**`Loop`**, ms of a step", "`Step(jit_compile=True)`", "`fit`", "`Loop` / `fit`"]
    read_with = [line for run in runs for line in under(run, "epochs each, in turns")]
    errors = [f"{row['what']} fails: `{row['error']}`" for run in runs for row in run.content["rows"] if "error" in row]
    return [*table(head, lines), "", *errors, *read_with, *machine(*runs)]


def milliseconds(row: dict[str, Any]) -> str:
    if "error" in row:
        return "fails"
    low, high = span(row)
    return f"{1000 * row['median']:.2f} ({1000 * low:.2f} to {1000 * high:.2f})"


# Name of a block: what makes it, and the run that it is made from
BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {
    "gpu-speed": (one_device, ["gpu-speed"]),
    "gpu-equivalence": (equivalence, ["gpu-equivalence"]),
    "gpu-recommender": (recommender, ["gpu-recommender"]),
    "gpu-kinds": (kinds, ["gpu-kinds", "gpu-resnet50"]),
}
