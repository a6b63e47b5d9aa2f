"""Calls that wait for something outside: what they give, and what is said of one that does not end."""

from __future__ import annotations

import threading

import pytest

from mirrorkit.errors import FileError
from mirrorkit.within import within


def test_a_call_gives_what_it_gives() -> None:
    assert within("a sum", 60, sum, (1, 2), start=3) == 6
    with pytest.raises(ZeroDivisionError):
        within("a quotient", 60, divmod, 1, 0)


def test_one_that_does_not_end_is_named_and_left_alone() -> None:
    answer = threading.Event()
    with pytest.raises(FileError, match=r"The disk has not answered for 0\.05 s"):
        within("The disk", 0.05, answer.wait)
    answer.set()
