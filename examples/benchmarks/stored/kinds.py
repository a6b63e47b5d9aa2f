"""The tables of kinds_of_work.py: two contenders side by side, each quantity in a table of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.chart import Chart
from harness.report import span

from stored.runs import Run
from stored.tables import machine, table, times

NAME = "kinds-of-work"  # of the stored run, and of its picture
LOOP, FIT = "`Loop`", "`fit`"
PAIRS = {"loop": "fit", "synchronized": "plain"}
# What is measured: heading, factor, form
QUANTITIES = {
    "step": ("ms of a step", 1000, ",.2f"),
    "peak": ("peak memory, MB", 1, ",.0f"),
    "first": ("first update, s", 1, ",.2f"),
    "tracing": ("of it tracing, s", 1, ",.2f"),
}
OF_BOTH = ("step", "peak", "first")  # fit does not say how long it traces
EACH = {"step": "epochs", "peak": "processes", "first": "processes"}


def cases(run: Run, contender: str = "loop") -> list[tuple[str, int]]:
    """The work and the numbers of replicas on which this contender was measured, or failed."""
    rows = (row for row in run.content["rows"] if row["contender"] == contender)
    return list(dict.fromkeys((row["work"], row["replicas"]) for row in rows))


def found(run: Run, **keys: Any) -> dict[str, Any]:
    """The row with these keys, or the one that says why there is none."""
    failed = {**keys, "measured": "nothing"}
    for row in run.content["rows"]:
        if "error" in row and all(row.get(key) == value for key, value in failed.items()):
            return row
    return run.row(**keys)


def ratios(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float] | None:
    """`one` by `other`: of medians, of the fastest, and the lowest and highest of values that were taken in turn."""
    if "error" in one or "error" in other:
        return None
    pairs = [a / b for a, b in zip(one["values"], other["values"], strict=True)]
    of = {"median": one["median"] / other["median"], "smallest": min(one["values"]) / min(other["values"])}
    return {**of, "low": min(pairs), "high": max(pairs)}


def compared(run: Run, measured: str, case: tuple[str, int], contender: str = "loop") -> list[str]:
    """The cells of both contenders and their ratios."""
    _, factor, form = QUANTITIES[measured]
    rows = [found(run, **keys_of(case, measured), contender=name) for name in (contender, PAIRS[contender])]
    cells = []
    for row in rows:
        if "error" in row:
            cells += [row["error"].replace("|", "\\|"), ""]
        else:
            low, median, high = (format(factor * value, form) for value in (span(row)[0], row["median"], span(row)[1]))
            cells += [median, f"{low} to {high}"]
    of = ratios(*rows)
    return cells + (["", "", ""] if of is None else [times(of["median"]), between(of), times(of["smallest"])])


def between(of: dict[str, float]) -> str:
    return f"{times(of['low'])} to {times(of['high'])}"


def head(one: str, other: str, unit: str = "") -> list[str]:
    sizes = [f"**{one}**{unit}", "range", f"{other}{unit}", "range"]
    return [*sizes, f"{one} / {other}", "range of pairs", "of the smallest"]


def beside_fit(measured: str) -> Callable[[Run], list[str]]:
    """A table of one quantity, by kind of work and number of replicas."""

    def make(run: Run) -> list[str]:
        more = measured == "first"
        lines = []
        for work, replicas in cases(run):
            line = [work, str(replicas), *compared(run, measured, (work, replicas))]
            if more:
                row = found(run, measured="checks", work=work, replicas=replicas, contender="loop")
                line.append("" if "error" in row else format(row["median"], ",.2f"))
            lines.append(line)
        if not lines:
            return [f"Not measured by `{run.command}`"]
        heading = ["work", "replicas", *head(LOOP, FIT, f", {QUANTITIES[measured][0]}"), *["checks, s"] * more]
        return [*table(heading, lines), *under(run, [measured], "loop")]

    return make


def batch_norm(run: Run) -> list[str]:
    lines = [
        [str(case[1]), QUANTITIES[measured][0], *compared(run, measured, case, "synchronized")]
        for case in cases(run, "synchronized")
        for measured in OF_BOTH
    ]
    if not lines:
        return [f"Not measured by `{run.command}`"]
    heading = ["replicas", "", *head("synchronized", "plain")]
    return [*table(heading, lines), *under(run, OF_BOTH, "synchronized")]


def chart(run: Run) -> Chart:
    """The ratio of step times, a bar for each kind of work and number of replicas."""
    of = {
        case: ratios(*(found(run, **keys_of(case), contender=name) for name in ("loop", "fit"))) for case in cases(run)
    }
    values = [None if one is None else one["median"] for one in of.values()]
    spans = [None if one is None else (one["low"], one["high"]) for one in of.values()]
    labels = [f"{work} x{replicas}" for work, replicas in of]
    unit = "step time, Loop / fit: of medians, range of pairs"
    return Chart(
        "Step time by kind of work", labels, {unit: values}, {unit: spans}, y_label=unit, bars=True, form=".2f"
    )


def keys_of(case: tuple[str, int], measured: str = "step") -> dict[str, Any]:
    return {"measured": measured, "work": case[0], "replicas": case[1]}


def under(run: Run, measured: Sequence[str], contender: str) -> list[str]:
    """How many measurements a table has, the command, and where it ran."""
    rows = [row for row in run.rows if row["measured"] in measured and row["contender"] == contender]
    each = " or ".join(dict.fromkeys(f"{row['n']} {EACH[row['measured']]}" for row in rows))
    return ["", f"n = {each or 0} each; `{run.command}`", *machine(run)]


# Name of a block: what makes it, and the run that it is made from
BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {
    **{f"kinds-{name}": (beside_fit(name), [NAME]) for name in OF_BOTH},
    "kinds-batch-norm": (batch_norm, [NAME]),
}
