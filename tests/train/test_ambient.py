"""What holds for the code of a thread within a block."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf
from test_package import FILES, PACKAGE, inner_files, tree_of

from mirrorkit import private
from mirrorkit.train.ambient import ambient


def test_a_block_sets_values_and_puts_them_back_whatever_happens() -> None:
    with contextlib.suppress(KeyError), ambient.set(gather=len):
        assert (ambient.gather, ambient.alone) == (len, False)
        with ambient.set(gather=max, alone=True):
            assert (ambient.gather, ambient.alone) == (max, True)
        assert (ambient.gather, ambient.alone) == (len, False)
        raise KeyError
    assert (ambient.gather, ambient.alone) == (None, False)


def test_other_threads_begin_with_the_first_values() -> None:
    with ThreadPoolExecutor(1) as thread, ambient.set(alone=True):
        assert thread.submit(lambda: ambient.alone).result() is False


def test_a_value_that_has_no_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nmae"), ambient.set(nmae="second"):
        pass


def test_every_file_that_replaces_functions_is_loaded_with_the_package() -> None:
    """Else they would stay as they are, without a word."""
    loaded, left = {"train/__init__.py"}, {"train/__init__.py"}
    while left:
        found = inner_files(tree_of(PACKAGE / left.pop()))
        left |= found - loaded
        loaded |= found
    replacing = {str(path.relative_to(PACKAGE)) for path in FILES if re.search(r"^@replaces\(", path.read_text(), re.M)}
    assert len(replacing) > 5
    assert replacing <= loaded


def test_a_block_in_which_others_are_installed_does_not_undo_them() -> None:
    """`mk.timing.warm_up` replaces the call of tf.functions, and a step may be traced within for the first time."""
    called, asked = list[bool](), [True]

    def wrapper(original: Any, *args: Any) -> Any:
        called.append(True)
        return original(*args)

    private.register("nn.dropout", wrapper, lambda: bool(asked))
    with private.replace("nn.dropout", lambda original, *args: original(*args)), ambient.set():
        tf.nn.dropout(tf.ones(2), 0.5)
    tf.nn.dropout(tf.ones(2), 0.5)
    asked.clear()
    assert called == [True, True]
