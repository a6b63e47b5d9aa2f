"""A finding: what one check found, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from mirrorkit.errors import MirrorkitError
from mirrorkit.within import within

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """What one check found; `cure` says what to do about a warning or a failure."""

    name: str
    status: Status
    found: str
    cure: str = ""


def of_message(name: str, status: Status, message: str, *, cure: str = "Correct it, and try again.") -> Finding:
    """Return a message of mirrorkit as a finding: its first sentence is what was found, the others what to do.

    `cure` is for a message of a single sentence.
    """
    first, *rest = re.split(r"(?<=[^.]\.)\s+", message.strip(), maxsplit=1)
    return Finding(name, status, first, rest[0] if rest else cure)


def guarded(name: str, check: Callable[[], Iterable[Finding]], *, seconds: float | None = None) -> list[Finding]:
    """Run a check. If it raises, or does not end within `seconds`, the last finding is a failure that says so."""
    found: list[Finding] = []
    try:
        within(f"The check of {name}", seconds, lambda: found.extend(check()))
    except MirrorkitError as error:
        return [*found, of_message(name, "failure", str(error))]
    except Exception as error:
        cure = "The doctor did not expect this: fix what the error names, and report it if that does not help."
        return [*found, Finding(name, "failure", f"the check ended with {type(error).__name__}: {error}", cure)]
    return found
