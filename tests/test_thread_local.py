"""Values of a thread that are others within a block."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorkit.thread_local import ThreadLocal


def test_a_block_sets_them_and_puts_them_back_whatever_happens() -> None:
    values = ThreadLocal(name="first", other=1)
    with contextlib.suppress(KeyError), values.set(name="second"):
        assert (values.name, values.other) == ("second", 1)
        with values.set(name="third", other=2):
            assert (values.name, values.other) == ("third", 2)
        assert (values.name, values.other) == ("second", 1)
        raise KeyError
    assert (values.name, values.other) == ("first", 1)


def test_other_threads_begin_with_the_first_values() -> None:
    values = ThreadLocal(name="first")
    with ThreadPoolExecutor(1) as thread, values.set(name="second"):
        assert thread.submit(lambda: values.name).result() == "first"


def test_a_value_that_was_not_named_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nmae"), ThreadLocal(name="first").set(nmae="second"):
        pass
