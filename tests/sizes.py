"""The package's size in Python tokens, and a ceiling for each room: `python tests/sizes.py`.

A room is a folder of mirrorkit, of `train` a folder within it, or a file beside them. Comments, docstrings and line
breaks are free, and a long name costs as much as a short one, so nothing is gained by packing lines.

    python tests/sizes.py            # tokens and ceiling of each room
    python tests/sizes.py --write    # lower the ceilings in tests/ceilings.txt to what the rooms need; raise none

test_package.py fails when a room is above its ceiling, or far below it. To raise a ceiling, or to add one for a new
room, edit ceilings.txt, and say in the commit what the room gains by it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mirrorkit"
CEILINGS = Path(__file__).with_name("ceilings.txt")

_FREE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tokens(source: str) -> int:
    """The number of tokens that a reader has to follow."""
    of_docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            of_docstrings |= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    count = within = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if not within and token.type not in _FREE and token.start[0] not in of_docstrings:
            count += 1
        # An f-string is one token, as before Python 3.12, which reads its parts.
        kind = tokenize.tok_name[token.type]
        within += (kind == "FSTRING_START") - (kind == "FSTRING_END")
    return count


def sizes(package: Path = PACKAGE) -> Counter[str]:
    """The tokens of each room."""
    found: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).parts
        room = "/".join(parts[:2]) if parts[0] == "train" and len(parts) > 2 else parts[0]
        found[room] += tokens(path.read_text(encoding="utf-8"))
    return found


def read_ceilings() -> dict[str, int]:
    """The ceiling of each room."""
    lines = [line.split() for line in CEILINGS.read_text().splitlines()]
    return {room: int(ceiling) for ceiling, room in lines}


def as_text(ceilings: Mapping[str, int]) -> str:
    """What ceilings.txt holds."""
    return "".join(f"{ceiling:6} {room}\n" for room, ceiling in sorted(ceilings.items()))


def problems(found: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """What is wrong with the rooms, a line for each."""
    wrong = []
    for room in sorted({*found, *ceilings}):
        size, ceiling = found.get(room, 0), ceilings.get(room)
        if ceiling is None:
            wrong.append(f"{room}: {size} tokens and no ceiling; add a line to tests/ceilings.txt")
        elif size > ceiling:
            wrong.append(f"{room}: {size} tokens, {size - ceiling} above its ceiling; shorten it, or raise the ceiling")
        elif size < ceiling - ceiling * 0.03 - 100 or room not in found:
            wrong.append(f"{room}: {size} tokens, far below {ceiling}; lower it: python tests/sizes.py --write")
    return wrong


def lowered(found: Mapping[str, int], ceilings: Mapping[str, int]) -> dict[str, int]:
    """The ceilings, each lowered to what its room needs and a little for repairs; without those of rooms that left."""
    needed = {room: size + size // 200 + 10 for room, size in found.items()}
    return {room: min(ceiling, needed[room]) for room, ceiling in ceilings.items() if room in needed}


def main(arguments: list[str]) -> int:
    """Print the table; with `--write` lower the ceilings."""
    found, ceilings = sizes(), read_ceilings()
    if "--write" in arguments:
        ceilings = lowered(found, ceilings)
        CEILINGS.write_text(as_text(ceilings))
    print(f"{sum(found.values()):9,} tokens, {sum(ceilings.values()):,} allowed")
    for room, size in found.most_common():
        print(f"{size:9,} {ceilings.get(room, 0):9,}  {room}")
    wrong = problems(found, ceilings)
    print("".join(f"{line}\n" for line in wrong), end="", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
