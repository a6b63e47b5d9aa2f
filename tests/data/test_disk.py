"""Paths that users give; failures of a disk become one kind of error, whoever found them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import data
from mirrorkit.data.disk import file_errors, path_of, paths_of, reason
from mirrorkit.errors import DataError, FileError, RecipeError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.bin"), r"No space .*a\.bin"),
        (tf.errors.ResourceExhaustedError(None, None, "a.bin; No space left on device"), r"a\.bin; No space"),
    ],
)
def test_both_kinds_become_a_file_error_with_the_cause_and_the_cure(error, words):
    with (
        pytest.raises(FileError, match=rf"^Cannot write: .*{words}.*Free some\.$") as caught,
        file_errors("Cannot write", "Free some."),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("error", [DataError("damaged"), ValueError("other"), KeyboardInterrupt()])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, file_errors("Cannot write", "Free some."):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    "message",
    [
        "truncated record at 7 {{node Iterator}}\nmore",
        "{{function_node a}} {{node b}} truncated record at 7\n\t [[{{node c}}]]",
        "{{function_node __wrapped__Next}} truncated record at 7 [Op:IteratorGetNext] name: ",
    ],
)
def test_the_reason_is_the_first_line_without_nodes(message):
    assert reason(tf.errors.DataLossError(None, None, message)) == "truncated record at 7"


class _Bytes:
    def __fspath__(self):
        return b"a"


@pytest.mark.parametrize("wrong", [3, None, b"a", _Bytes(), {"a"}], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(
    ("who", "take", "several"),
    [
        ("image_folder", lambda path: data.image_folder(path, labels=None, global_batch_size=1), True),
        ("parquet", lambda path: data.parquet(path, global_batch_size=1), True),
        ("records", lambda path: data.records(path, global_batch_size=1), False),
    ],
    ids=["image_folder", "parquet", "records"],
)
def test_what_is_no_path_is_refused(who, take, several, wrong):
    for given in (wrong, ["a", wrong]) if several else (wrong, ["a"]):
        found = wrong if several else given
        with pytest.raises(RecipeError, match=rf"{who} .* \({type(found).__name__}\)\."):
            take(given)


def test_paths_are_text_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert path_of("load", Path("~/data")) == "/home/anna/data"
    for several in (["b", Path("a")], ("b", "a"), np.array(["b", "a"]), iter("ba")):
        assert paths_of("load", several) == ["b", "a"]
    assert paths_of("load", "~") == ["/home/anna"]
