"""Measure contenders in turns: A B C A B C.

The speed of a machine changes within minutes (clock rate, other programs), so what is compared is measured in turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorkit.errors import ArgumentError, MirrorkitError
from mirrorkit.whole import whole_number


@dataclass
class Turns:
    """What one contender returned, turn by turn, or why it failed."""

    answers: list[Any] = field(default_factory=list)
    error: str | None = None


def in_turns(contenders: Mapping[Any, Callable[[], Any]], repeats: int, *, until: float = math.inf) -> dict[Any, Turns]:
    """Call each contender once, then each again, `repeats` times in all.

    After `until`, a time of `time.monotonic`, no further round begins; the first one always does. When a contender
    raises a `MirrorkitError`, the others go on.
    """
    whole_number("repeats", repeats, ArgumentError)
    turns = {name: Turns() for name in contenders}
    for number in range(repeats):
        if number and time.monotonic() > until:
            break
        for name, call in contenders.items():
            if turns[name].error is None:
                try:
                    turns[name].answers.append(call())
                except MirrorkitError as error:
                    turns[name].error = str(error)
    return turns


def values_in_turns(
    contenders: Mapping[Any, Callable[[], Any]], repeats: int, *, warm_up: int = 0
) -> dict[Any, list[Any]]:
    """Return what each contender returned in turns, after `warm_up` rounds that do not count; errors are raised."""
    whole_number("repeats", repeats, ArgumentError)
    rounds = [{name: call() for name, call in contenders.items()} for _ in range(warm_up + repeats)]
    return {name: [values[name] for values in rounds[warm_up:]] for name in contenders}
