"""Read the runs that docs/figures keeps: what the benchmarks write with --json."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.report import figures

FOLDER = Path(__file__).parents[3] / "docs/figures"
TABLE = "equivalence-table"  # a page: its command writes no JSON
# What the scripts were called when the oldest runs were made: a command of the package, with the same options
FORMER = {
    "python -m mirrorkit bench gpu": "python examples/benchmarks/gpu.py",
    "python -m mirrorkit bench collectives": "python examples/benchmarks/all_reduce.py",
    "python -m mirrorkit bench strategies": "python examples/benchmarks/training_speed.py strategies",
    "python -m mirrorkit bench scaling": "python examples/benchmarks/training_speed.py scaling",
}
CELL = re.compile(r"(?P<difference>[\d.e+-]+) \((?P<control>[\d.e+-]+)\)")


@dataclass(frozen=True)
class Run:
    """One run of a benchmark."""

    name: str
    content: dict[str, Any]

    @property
    def digest(self) -> str:
        return digest(self.content)

    @property
    def file(self) -> str:
        return f"{self.name}.{'md' if self.name == TABLE else 'json'}"

    @property
    def date(self) -> str:
        return self.content["about"]["time"][:10]

    @property
    def command(self) -> str:
        """What to type today, without the files that were written."""
        command = re.sub(r" --(json|plot|write|data-dir)[ =]\S+", "", self.content["about"]["command"])
        for former, script in FORMER.items():
            command = command.replace(former, script)
        return command

    @property
    def hardware(self) -> str:
        about = self.content["about"]
        gpus = "".join(f", {gpu}" for gpu in about["gpus"])
        return f"{about['cores']} cores of {about['processor']}, {about['memory_gib']} GiB{gpus}"

    def versions(self, *names: str) -> list[str]:
        """Of those distributions that were installed, such as "TensorFlow 2.21.0"."""
        words = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras", "torch": "PyTorch"}
        found = self.content["about"]["versions"]
        return [f"{words.get(name, name)} {found[name]}" for name in names if name in found]

    @property
    def environment(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.content["about"]["environment"].items()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was measured; medians and all else are computed from the single measurements."""
        return [row | figures(row["values"]) for row in self.content["rows"] if "values" in row]

    def row(self, **keys: Any) -> dict[str, Any]:
        """The one row that has these keys."""
        found = [row for row in self.rows if all(row.get(key) == value for key, value in keys.items())]
        if len(found) != 1:
            raise ValueError(
                f"docs/figures/{self.name}.json has {len(found)} measured rows with {keys}; it must be one."
            )
        return found[0]


def read(name: str, folder: Path = FOLDER) -> Run:
    if name == TABLE:
        return Run(name, of_all_features(folder.parent / f"{name}.md"))
    return Run(name, json.loads((folder / f"{name}.json").read_text()))


def of_all_features(page: Path) -> dict[str, Any]:
    """What the page of all features says: when and where it was measured, and its cells."""
    table = page.read_text().partition("<!-- table: written by tests/equivalence/table.py -->")[2]
    date, about = re.search(r"^([\d-]+): (.+?), mirrorkit \S+; \d+ cells", table, re.MULTILINE).groups()
    rows, kind = [], ""
    for line in table.splitlines():
        if line.startswith("### "):
            kind = line[4:]
        elif line.startswith("| ") and not line.startswith(("| feature ", "| --- ")):
            feature, _, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
            found = [CELL.fullmatch(cell) for cell in cells if cell != "-"]  # of a feature that is not measured there
            if not all(found):
                raise ValueError(f"{page.name} has a cell that is no difference with its control: {line}")
            numbers = [{key: float(text) for key, text in cell.groupdict().items()} for cell in found]
            rows += [{"strategy": kind, "feature": feature, **cell} for cell in numbers]
    return {"about": {"time": date, "where": about}, "rows": rows}


def digest(content: Any) -> str:
    """A digest of what a JSON file says, however it is indented."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
