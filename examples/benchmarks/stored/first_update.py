"""The tables of first_update.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from stored import kinds
from stored.runs import Run
from stored.tables import table, times

NAME = "first-update"  # of the stored run
MEASURED = ("first", "tracing", "step")  # of synchronized layers


def beside_fit(run: Run) -> list[str]:
    """All of the first update, the checks and the tracing in it, and its ratio to fit with and without the checks."""
    lines = [[*case_cells(case), *cells(run, case)] for case in kinds.cases(run)]
    if not lines:
        return [f"Not measured by `{run.command}`"]
    head = kinds.head(kinds.LOOP, kinds.FIT, ", s")[:-1]
    more = ["of it checks, s", "tracing, s", "without the checks / `fit`", "range of pairs"]
    return [*table(["net", "replicas", *head, *more], lines), *kinds.under(run, ["first"], "loop")]


def cells(run: Run, case: tuple[str, int]) -> list[str]:
    both = kinds.compared(run, "first", case)[:-1]
    of = [("first", "loop"), ("checks", "loop"), ("tracing", "loop"), ("first", "fit")]
    rows = [kinds.found(run, **kinds.keys_of(case, measured), contender=name) for measured, name in of]
    if any("error" in row for row in rows):
        return [*both, "", "", "", ""]
    first, checks, tracing, fit = rows
    without = [all_of_it - of_checks for all_of_it, of_checks in zip(first["values"], checks["values"], strict=True)]
    ratio = kinds.ratios({"values": without, "median": statistics.median(without)}, fit)
    parts = [format(row["median"], ",.2f") for row in (checks, tracing)]
    return [*both, *parts, times(ratio["median"]), kinds.between(ratio)]


def case_cells(case: tuple[str, int]) -> list[str]:
    work, replicas = case
    return [work, str(replicas)]


def synchronized(run: Run) -> list[str]:
    """Synchronized beside plain layers, by the depth of the net."""
    lines = [
        [*case_cells(case), kinds.QUANTITIES[measured][0], *kinds.compared(run, measured, case, "synchronized")[:-1]]
        for case in kinds.cases(run, "synchronized")
        for measured in MEASURED
    ]
    if not lines:
        return [f"Not measured by `{run.command}`"]
    head = ["net", "replicas", "", *kinds.head("synchronized", "plain")[:-1]]
    return [*table(head, lines), *kinds.under(run, ["first"], "synchronized")]


# Name of a block: what makes it, and the run that it is made from
BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {
    "first-update": (beside_fit, [NAME]),
    "first-update-batch-norm": (synchronized, [NAME]),
}
