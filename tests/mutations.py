"""How much the fast tests notice: `python tests/mutations.py FILE` flips one operator or constant of the package at a
time, in a copy of a commit, and runs the tests of its room there.

    python tests/mutations.py FILE                              # 60 places by chance, seed 0, of HEAD
    python tests/mutations.py FILE --commit REV --places OLD    # the flips of an earlier file, in another commit
    python tests/mutations.py FILE --by-hand                    # the mechanisms of mechanisms.py instead

A flip is + and -, * and /, == and !=, < and <=, is and is not, in and not in, and and or, not and nothing, True and
False, or a number plus 1. None is made where it could only change a text or help a reader: in annotations, f-strings,
`raise`, `assert`, the options of `dataclass` and `strict=` of zip.

The tests of a flip are those named after its module, then the others in their folder, then, for a room of `train`,
tests/train/*.py, until one is red. FILE has a line of JSON for each: the place, the flip, whether it was noticed, by
which test, and the seconds. Tests that do not end in the time of `--limit` count as red. A begun FILE is continued. At
the end the tests that were red run on the unchanged copy, since one that is red there too has noticed nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechanisms import MECHANISMS

ROOT = Path(__file__).parents[1]
_FLIPS = {
    **{"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "and": "or", "or": "and"},
    **{"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    **{"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
}
_SYMBOLS = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.And: "and", ast.Or: "or"},
}
_MARK = "MIRRORKIT_MUTANT"  # an environment variable, by which what a test leaves running is found


@dataclass(frozen=True)
class Place:
    """A text of the package, `old` in the line `source` from `column` on (without its indentation), and its flip."""

    file: str
    line: int
    source: str
    column: int
    old: str
    new: str

    def is_at(self, other: Place) -> bool:
        """Whether it is the same flip of the same source line, which may have moved within its file."""
        return all(getattr(self, name) == getattr(other, name) for name in ("file", "source", "column", "old", "new"))

    def changed(self, text: str) -> str:
        """The file's text with the flip."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        start = len(line) - len(line.lstrip()) + self.column
        lines[self.line - 1] = line[:start] + self.new + line[start + len(self.old) :]
        return "".join(lines)


def places(text: str, file: str) -> list[Place]:
    """Each place of a file where something can be flipped."""
    lines = text.splitlines()

    def place(line: int, column: int, old: str, new: str) -> Place:
        source = lines[line - 1].strip()
        return Place(file, line, source, column - lines[line - 1].index(source), old, new)

    def between(left: ast.expr, right: ast.expr, kind: ast.AST) -> Iterator[Place]:
        """The operator between two operands; no place where it is over two lines."""
        symbol = _SYMBOLS.get(type(kind), "")
        for number in range(left.end_lineno, right.lineno + 1) if symbol else ():
            first = _characters(lines[number - 1], left.end_col_offset) if number == left.end_lineno else 0
            last = _characters(lines[number - 1], right.col_offset) if number == right.lineno else None
            gap = lines[number - 1][first:last].split("#")[0]
            if symbol in gap:
                yield place(number, first + gap.index(symbol), symbol, _FLIPS[symbol])

    def of(node: ast.AST) -> Iterator[Place]:
        if isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare):
            for left, right, kind in zip([node.left, *node.comparators], node.comparators, node.ops, strict=False):
                yield from between(left, right, kind)
        elif isinstance(node, ast.BoolOp):
            for left, right in itertools.pairwise(node.values):
                yield from between(left, right, node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield place(node.lineno, _characters(lines[node.lineno - 1], node.col_offset), "not ", "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            old, number = ast.get_source_segment(text, node) or "", node.value
            new = not number if isinstance(number, bool) else number + 1 if number + 1 != number else 2 * number
            yield place(node.lineno, _characters(lines[node.lineno - 1], node.col_offset), old, str(new))

    return [found for node in _running(ast.parse(text)) for found in of(node)]


def _characters(line: str, column: int) -> int:
    """The syntax tree counts bytes."""
    return len(line.encode()[:column].decode())


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without those that only change a text or help a reader."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _only_for_readers(node, name, child):
                yield from _running(child)


def _only_for_readers(parent: ast.AST, field: str, node: ast.AST) -> bool:
    return (
        field in ("annotation", "returns")
        or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert))
        or (isinstance(node, ast.keyword) and node.arg == "strict")
        or (field == "decorator_list" and "dataclass" in ast.unparse(node))
        or (isinstance(parent, ast.If) and field == "body" and "TYPE_CHECKING" in ast.unparse(parent.test))
    )


def stages(copy: Path, file: str) -> list[list[str]]:
    """The test files of a module: those of its name, the others of its folder, and what tests all of `train`."""
    folder, name = Path(file).relative_to("mirrorkit").parent, Path(file).stem.strip("_")
    room = sorted((copy / "tests" / folder).glob("test_*.py"))
    named = [path for path in room if name and f"_{name}" in path.stem]
    others = [path for path in room if path not in named]
    all_train = sorted((copy / "tests/train").glob("test_*.py")) if folder.parts[:1] == ("train",) else []
    found = [named, others, [path for path in all_train if path not in room]]
    return [[str(path.relative_to(copy)) for path in stage] for stage in found if stage]


def first_red(copy: Path, tests: list[str], limit: float, *options: str) -> str:
    """Run tests in a copy, and return the first that is red, or what else went wrong; "" when all are green."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "--timeout", "180", "-p", "no:cacheprovider"]
    command += [f"--basetemp={copy}.tmp", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), _MARK: str(copy)}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = "the time limit"
        finally:
            _end_all(copy)
            process.wait()
        output.seek(0)
        red = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read(), re.MULTILINE)
    if status in (0, 5):  # 5: there are slow tests only
        return ""
    return "\n".join(red) or f"pytest: {status}"


def _end_all(copy: Path) -> None:
    """End what the tests of a copy left running."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={copy}".encode() in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)


def try_out(copy: Path, file: str, changed: str, tests: list[list[str]], limit: float) -> dict[str, Any]:
    """Run tests with one file changed, and say which test noticed."""
    path, start = copy / file, time.monotonic()
    text = path.read_text(encoding="utf-8")
    path.write_text(changed, encoding="utf-8")
    try:
        red = next(filter(None, (first_red(copy, stage, limit, "-x") for stage in tests)), "")
    finally:
        path.write_text(text, encoding="utf-8")
    return {"noticed": bool(red), "by": red, "seconds": round(time.monotonic() - start)}


def cases(copy: Path, args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], str, list[list[str]]]]:
    """What to try: its description, the changed text ("" where there is nothing to change any more), and the tests."""
    if args.by_hand:
        for one in MECHANISMS:
            text = (copy / one.file).read_text(encoding="utf-8") if (copy / one.file).exists() else ""
            changed = text.replace(one.old, one.new) if text.count(one.old) == 1 else ""
            yield {"mechanism": one.name, "file": one.file}, changed, [[one.test]]
        return
    files = sorted((copy / "mirrorkit").rglob("*.py"))
    texts = {str(path.relative_to(copy)): path.read_text(encoding="utf-8") for path in files}
    found = [place for file, text in texts.items() for place in places(text, file)]
    if args.places:
        lines = [json.loads(line) for line in args.places.read_text().splitlines()]
        wanted = [(Place(**{name: line[name] for name in Place.__match_args__}), line.get("by", "")) for line in lines]
    else:
        wanted = [(place, "") for place in random.Random(args.seed).sample(found, args.number)]
    for old, red in wanted:
        same = [place for place in found if place.is_at(old)]
        place = min(same, key=lambda place, old=old: abs(place.line - old.line), default=None)
        tests = stages(copy, old.file)
        first = [test for stage in tests for test in stage if red.startswith(f"{test}::")]  # it saves time
        yield asdict(old), place.changed(texts[place.file]) if place else "", [first, *tests] if first else tests


def copy_of(commit: str, folder: Path) -> Path:
    """Write a commit's files into a folder, also over a flip that a killed run has left there."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder / commit, filter="data")
    return folder / commit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON lines; continued where it exists")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--number", type=int, default=60, help="of places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", type=Path, help="an earlier file, whose flips are tried")
    parser.add_argument("--by-hand", action="store_true", help="try the rows of mechanisms.py")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for the tests of a stage")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more flips after so many")
    parser.add_argument("--copies", type=Path, default=Path(tempfile.gettempdir()) / "mutants", help="a folder")
    args = parser.parse_args()
    commit = ["git", "rev-parse", "--short", args.commit]
    commit = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    copy = copy_of(commit, args.copies)
    lines = args.file.read_text().splitlines() if args.file.exists() else []
    done, end = [json.loads(line) for line in lines], time.monotonic() + 60 * args.minutes
    for number, (what, changed, tests) in enumerate(cases(copy, args)):
        if number >= len(done) and time.monotonic() < end:
            result = try_out(copy, what["file"], changed, tests, args.limit) if changed else {"gone": True}
            done.append({"commit": commit, **what, **result})
            with args.file.open("a") as file:
                file.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
            print(json.dumps(done[-1], ensure_ascii=False), flush=True)
    there = [one for one in done if "noticed" in one]
    print(f"{sum(one['noticed'] for one in there)} of {len(there)} noticed, {len(done) - len(there)} gone")
    red = sorted({test for one in there for test in one["by"].splitlines() if "::" in test})
    always = first_red(copy, red, 10 * args.limit) if red else ""
    print(f"red without a flip too, which is no proof: {always}" if always else "these tests are green without a flip")
    return 0 if not always else 1


if __name__ == "__main__":
    sys.exit(main())
