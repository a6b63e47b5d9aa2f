"""Failures of a disk become one kind of error, whoever found them."""

from __future__ import annotations

import errno
import os

import pytest
import tensorflow as tf

from mirrorkit.data.disk import DISK_ERRORS, file_errors, reason
from mirrorkit.errors import DataError, FileError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.bin"), r"No space left on device: 'a\.bin'"),
        (tf.errors.ResourceExhaustedError(None, None, "a.bin; No space left on device"), r"a\.bin; No space"),
    ],
)
def test_both_kinds_become_a_file_error_with_the_cause_and_the_cure(error, words):
    with (
        pytest.raises(FileError, match=rf"^Cannot write: .*{words}.*\. Free some\.$") as caught,
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


def test_a_folder_in_the_place_of_a_file_is_a_disk_error(tmp_path):
    with pytest.raises(DISK_ERRORS):
        next(iter(tf.data.TFRecordDataset(str(tmp_path))))
