"""The pictures of the documentation, each drawn from a stored run and stamped with a digest of what it says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.chart import Chart
from harness.report import span

from stored import equality, kinds
from stored.runs import FOLDER, TABLE, Run, digest, read

STAMP = re.compile(r"sha256 (?P<stamp>[0-9a-f]{16}), drawing (?P<drawing>[0-9a-f]{16})")


def bars(title: str, labels: Sequence[str], rows: Sequence[dict[str, Any]], unit: str, **options: Any) -> Chart:
    """A bar for each row, with its range."""
    values, spans = {"speed": [row["median"] for row in rows]}, {"speed": [span(row) for row in rows]}
    return Chart(title, labels, values, spans, y_label=f"{unit}: median, range", bars=True, **options)


def contenders(title: str, names: dict[str, str]) -> Callable[[Run], Chart]:
    """A chart of contenders; the first one is marked."""
    labels = list(names.values())

    def draw(run: Run) -> Chart:
        rows = [run.row(contender=name) for name in names]
        return bars(title, labels, rows, "images/s", form=",.0f", marked=labels[:1])

    return draw


def strategies(run: Run) -> Chart:
    labels = [f"{row['strategy']} x{row['replicas']}" for row in run.rows]
    beside = {"beside": [row["accuracy"] for row in run.rows], "beside_label": "test accuracy"}
    return bars("Speed and accuracy of every strategy on one machine", labels, run.rows, "examples/s", **beside)


SHORT = {
    "loop-resident": "mirrorkit Loop",
    "loop": "Loop, tf.data",
    "fit": "Keras fit",
    "fit-repeat": "fit, one dataset",
    "hand": "hand-written loop",
    "orbit": "orbit",
}
README = {name: SHORT[name] for name in ("loop-resident", "fit", "hand", "orbit")}
PICTURES: dict[str, tuple[Callable[[Run], Chart], str]] = {
    "cnn": (contenders("A CNN on 4 virtual replicas", {**SHORT, "loop-apart": "no communication"}), "cnn"),
    "linear": (contenders("A linear model on 4 virtual replicas", SHORT), "linear"),
    "readme": (contenders("A CNN on 4 virtual replicas of 2 CPU cores", README), "cnn"),
    "strategies": (strategies, "strategies"),
    kinds.NAME: (kinds.chart, kinds.NAME),
    "equality": (equality.chart, TABLE),
}


def chart(name: str, folder: Path = FOLDER) -> tuple[Chart, str]:
    """A picture's chart, and a digest of all that it says."""
    draw, source = PICTURES[name]
    run = read(source, folder)
    found = draw(run)
    return found, digest([run.content, asdict(found)])


def save(name: str, folder: Path = FOLDER) -> str:
    """Draw a picture with two stamps: the digest of what it says, and one of the file itself."""
    found, stamp = chart(name, folder)
    zeros = "0" * 16
    path = found.save(folder / f"{name}.svg", heading=False, description=f"sha256 {stamp}, drawing {zeros}")
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    text = "\n".join([*lines, ""])
    text = text.replace(zeros, hashlib.sha256(text.encode()).hexdigest()[:16], 1)
    path.write_text(text)
    return text


def wrong_in(name: str, folder: Path = FOLDER) -> str | None:
    """Say what is wrong with a picture; matplotlib is not needed."""
    path = folder / f"{name}.svg"
    text = path.read_text() if path.exists() else ""
    found = STAMP.search(text)
    if found is None:
        return "is missing, or was not drawn by this command"
    plain = text.replace(found["drawing"], "0" * 16, 1)
    if hashlib.sha256(plain.encode()).hexdigest()[:16] != found["drawing"]:
        return "was changed by hand"
    return None if found["stamp"] == chart(name, folder)[1] else "was drawn from other figures"
