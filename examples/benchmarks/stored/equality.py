"""How far N replicas are from one device: the table that tests/equivalence/table.py has written, in short."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from harness.chart import Chart

from stored.runs import TABLE, Run


def chart(run: Run) -> Chart:
    """The largest difference under each strategy."""
    rows = run.content["rows"]
    kinds = list(dict.fromkeys(row["strategy"] for row in rows))
    largest = [max(row["difference"] for row in rows if row["strategy"] == kind) for kind in kinds]
    rounding = max(row["control"] for row in rows)
    return Chart(
        "How far N replicas are from one device",
        kinds,
        {"difference": [1e7 * value for value in largest]},
        y_label=f"largest difference, in 1e-7 (rounding alone: {1e7 * rounding:.1f})",
        bars=True,
        form=".1f",
    )


def in_words(run: Run) -> list[str]:
    rows = run.content["rows"]
    features, kinds = ({row[key] for row in rows} for key in ("feature", "strategy"))
    difference, control = (max(row[key] for row in rows) for key in ("difference", "control"))
    text = (
        f"{len(rows)} trainings: {len(features)} features under {len(kinds)} strategies, on 1 to 4 replicas. The "
        "largest difference of any weight, optimizer slot or log from plain TensorFlow and Keras on one device is "
        f"{difference:.1e}; the same sums in another order differ by up to {control:.1e}. n = 1 each, {run.date}, "
        f"{run.content['about']['where']}."
    )
    return textwrap.wrap(text, 118)


BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {"equality": (in_words, [TABLE])}
