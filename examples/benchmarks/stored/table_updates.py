"""The table of kinds_of_work.py --kinds recommender --also dense lazy: ways to update large tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.report import span

from stored import kinds
from stored.runs import Run
from stored.tables import table, times

NAME = "table-updates"  # of the stored run
WAYS = {
    "loop": "**`Loop`**",
    "loop, dense": "`sparse_embeddings=False`",
    "loop, lazy": '`sparse_embeddings="lazy"`',
    "fit": "`fit`",
}


def beside_dense(run: Run) -> list[str]:
    """Each way's step, beside our own dense update and beside fit, and its peak memory."""
    lines = []
    for work, replicas in kinds.cases(run):
        optimizer = work.partition(", ")[2] or "adam"
        of = {way: kinds.found(run, measured="step", work=work, replicas=replicas, contender=way) for way in WAYS}
        for way, name in WAYS.items():
            peak = kinds.found(run, measured="peak", work=work, replicas=replicas, contender=way)
            low, high = (f"{1000 * value:,.2f}" for value in span(of[way]))
            beside = [kinds.ratios(of[way], of[other]) for other in ("loop, dense", "fit")]
            cells = [times(one["median"]) if one else "" for one in beside]
            step = [f"{1000 * of[way]['median']:,.2f}", f"{low} to {high}"]
            lines.append([optimizer, str(replicas), name, *step, *cells, f"{peak['median']:,.0f}"])
    head = ["optimizer", "replicas", "", "ms of a step", "range", "by the dense update", "by `fit`", "peak memory, MB"]
    return [*table(head, lines), *kinds.under(run, ["step"], "loop")]


# Name of a block: what makes it, and the run that it is made from
BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {"table-updates": (beside_dense, [NAME])}
