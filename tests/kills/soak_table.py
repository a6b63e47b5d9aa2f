"""The lines that the soak keeps, and the table of docs/soak.md that is made of them."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "../examples/benchmarks")]

import strikes
from harness import machine

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "docs" / "figures" / "soak.jsonl"
BEGIN, FINISH = "<!-- table: written by tests/kills/soak.py -->", "<!-- end of the soak's table -->"
NAMES = {
    "process": "one process, four replicas",
    "workers": "two workers, `launch --max-restarts`",
    "ps": "two workers, one parameter server, a chief, `launch --max-restarts`",
    "launcher": "the launcher of two workers",
}


@dataclass
class Struck:
    """What a strike came to."""

    part: str
    on: str
    deed: str
    moment: str
    began: int | None  # steps at which this life of the training began; None: it had not yet
    reached: int
    newest: int  # checkpoint
    unfinished: bool  # whether a half-written file was left
    starts: int  # that followed
    said: str
    seconds: float  # from the strike until all that it ended was gone, or until the training had gone on
    left: list[str]  # processes and ports
    problems: list[str]


@dataclass
class End:
    """What came of a part."""

    part: str
    seed: int
    steps: int
    starts: int
    seconds: int
    temporary: list[str]  # files left among the temporary ones
    problems: list[str]
    about: dict[str, Any]


def keep(path: Path, struck: Sequence[Struck], end: End) -> None:
    """Put the lines of a part into the place of those that it wrote before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = path.read_text().splitlines() if path.exists() else []
    lines = [line for line in others if json.loads(line)["part"] != end.part]
    lines += [json.dumps(asdict(one)) for one in (*struck, end)]
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> tuple[list[Struck], list[End]]:
    """The strikes and the ends of all parts, in the order of `NAMES`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines.sort(key=lambda line: list(NAMES).index(line["part"]))
    return [Struck(**line) for line in lines if "deed" in line], [End(**line) for line in lines if "deed" not in line]


def told(one: Struck) -> str:
    """A line for whoever watches."""
    began = "-" if one.began is None else one.began
    wrong = "; ".join(one.left + one.problems) or "right"
    steps = f"began at {began}, reached {one.reached}, newest {one.newest}"
    return f"{one.part}: {one.deed} to {one.on} {one.moment}, {steps}, {one.seconds:.1f} s: {wrong}"


def as_markdown(struck: Sequence[Struck], ends: Sequence[End]) -> str:
    """One table with a line for each kind of strike, one with the ends, and how they were made."""
    lines = [["run", "struck", "what", "strikes", "starts", "left running", "after", "right?"]]
    lines.append(["---", "---", "---", "---:", "---:", "---:", "---:", "---"])
    kinds = {(one.part, strikes.Strike(one.on, one.deed, one.moment)): None for one in struck}
    for part, kind in sorted(kinds, key=_place):
        ones = [one for one in struck if (one.part, one.on, one.deed, one.moment) == (part, *kind)]
        times = [one.seconds for one in ones]
        wrong = [text for one in ones for text in (*one.left, *one.problems)]
        after = f"{statistics.median(times):.1f} s (up to {max(times):.1f})"
        counts = (len(ones), sum(one.starts for one in ones), sum(len(one.left) for one in ones))
        what = f"{kind.deed}, {kind.moment}"
        lines.append([part, kind.on, what, *map(str, counts), after, _judged(wrong)])
    parts = [["run", "strikes", "kills", "starts", "steps", "minutes", "the end"]]
    parts.append(["---", "---:", "---:", "---:", "---:", "---:", "---"])
    for end in ends:
        ones = [one for one in struck if one.part == end.part]
        kills = sum(strikes.Strike(one.on, one.deed, one.moment).kills for one in ones)
        right = "every step counted once" if end.part == "ps" else "the bits of the undisturbed run"
        right += f"; {len(end.temporary)} files of AutoGraph left" if end.temporary else ""
        numbers = (len(ones), kills, end.starts, end.steps, round(end.seconds / 60))
        parts.append([f"{end.part}: {NAMES[end.part]}", *map(str, numbers), _judged(end.problems, right)])
    made = [f"{end.part}: {end.about['time'][:10]}, `python tests/kills/{end.about['command']}`" for end in ends]
    machines = sorted({machine.in_a_line(end.about) for end in ends})
    seeds = sorted({end.seed for end in ends})
    heading = f"{'; '.join(machines)}. Seed {', '.join(map(str, seeds))}. {'; '.join(made)}."
    return "\n".join([heading, "", *map(_row, parts), "", *map(_row, lines)])


def _place(kind: tuple[str, strikes.Strike]) -> tuple[int, int]:
    part, strike = kind
    return list(NAMES).index(part), list(strikes.MIX[part]).index(strike)


def _judged(problems: Sequence[str], right: str = "yes") -> str:
    return f"**no: {' '.join('; '.join(problems).split())[:300]}**" if problems else right


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
