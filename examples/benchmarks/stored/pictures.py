"""The pictures of the documentation, each drawn from a stored run and stamped with a digest of what it says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mirrorkit.bench.chart import Chart
from stored.runs import FOLDER, Run, digest, read

STAMP = re.compile(r"sha256 (?P<stamp>[0-9a-f]{16}), drawing (?P<drawing>[0-9a-f]{16})")


def bars(title: str, names: dict[str, str]) -> Callable[[Run], Chart]:
    """A chart of contenders; the first one is marked."""

    def draw(run: Run) -> Chart:
        rows, unit = [run.row(contender=name) for name in names], "images/s: median, range"
        values, spans = {"speed": [row.median for row in rows]}, {"speed": [row.span for row in rows]}
        labels = list(names.values())
        return Chart(title, labels, values, spans, y_label=unit, bars=True, form=",.0f", marked=labels[:1])

    return draw


def strategies_chart(run: Run) -> Chart:
    labels = [f"{row.keys['strategy']} x{row.keys['replicas']}" for row in run.rows]
    values, spans = {"speed": [row.median for row in run.rows]}, {"speed": [row.span for row in run.rows]}
    accuracies = [row.keys["accuracy"] for row in run.rows]
    title, unit = "Speed and accuracy of every strategy on one machine", "examples/s: median, range"
    return Chart(
        title,
        labels,
        values,
        spans,
        y_label=unit,
        bars=True,
        beside=accuracies,
        beside_label="test accuracy",
        marked=(),
    )


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
    "cnn": (bars("A CNN on 4 virtual replicas", {**SHORT, "loop-apart": "no communication"}), "cnn"),
    "linear": (bars("A linear model on 4 virtual replicas", SHORT), "linear"),
    "readme": (bars("A CNN on 4 virtual replicas of 2 CPU cores", README), "cnn"),
    "strategies": (strategies_chart, "strategies"),
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
