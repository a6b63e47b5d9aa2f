"""Small helpers: waits with a limit, whole numbers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mirrorkit.arguments import is_whole, seconds, whole_number
from mirrorkit.errors import ArgumentError, FileError
from mirrorkit.within import within


def test_a_call_gives_what_it_gives() -> None:
    assert within("a sum", 60, lambda: sum((1, 2), start=3)) == 6
    with pytest.raises(ZeroDivisionError):
        within("a quotient", 60, lambda: 1 / 0)


def test_one_that_does_not_end_is_named_and_left_alone() -> None:
    answer = threading.Event()
    with pytest.raises(FileError, match=r"The disk has not answered for 0\.05 s"):
        within("The disk", 0.05, answer.wait)
    answer.set()


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(3)])
def test_whole_numbers(value):
    assert is_whole(value)


@pytest.mark.parametrize("value", [0, -1, np.int64(0), True, np.bool_(True), 1.0, np.float32(2), "1", None, [1]])
def test_what_is_none_from_one_on(value):
    assert not is_whole(value)


def test_the_least_one_can_be_set():
    assert is_whole(0, 0)
    assert not is_whole(-1, 0)


def test_no_number_is_larger_than_tensorflow_can_count():
    assert whole_number("n", np.int64(2**62), ArgumentError) == 2**62
    with pytest.raises(ArgumentError, match=r"n must be a whole number from 1 on, found 0\."):
        whole_number("n", 0, ArgumentError)
    with pytest.raises(ArgumentError, match=r"n must be a whole number from 1 to 9223372036854775807, found 10{30}\."):
        whole_number("n", 10**30, ArgumentError)


def test_seconds():
    assert [seconds("wait", value, ArgumentError) for value in (0, 2.5, np.float32(1))] == [0.0, 2.5, 1.0]
    for value in (-1, float("nan"), float("inf"), 10**30, "5", None, True):
        with pytest.raises(ArgumentError, match="wait must be a number of seconds from 0 on, found"):
            seconds("wait", value, ArgumentError)
