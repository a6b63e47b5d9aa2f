"""RecordIndex: the number of examples and their places, from the headers or by reading."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.data import record_index
from mirrorkit.data.record_index import RecordIndex, count_by_reading
from mirrorkit.errors import DataError, FileError

LENGTHS = [0, 1, 700, 31, 2, *range(100), 5000]


def write(path, lengths=LENGTHS, compression: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for length in lengths:
            writer.write(b"x" * length)
    return str(path)


def read(file: str, segment) -> list[int]:
    def records(_):  # TensorFlow 2.21 finds the offsets only within a dataset's function
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[file], compression_type="", buffer_size=segment.buffer, byte_offsets=[segment.offset]
        )
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))

    found = tf.data.Dataset.range(1).flat_map(records).skip(segment.skip).take(segment.size)
    return [len(record) for record in found.as_numpy_iterator()]


@pytest.mark.parametrize("prefix", ["", "file://"])  # "file://": as a file that is not local, which is read through
def test_every_example_is_found(tmp_path, prefix):
    file = write(tmp_path / "a")
    index = RecordIndex([prefix + file], "", None)
    assert index.counts == (len(LENGTHS),)
    assert index.reads_through == bool(prefix)
    for first in range(0, len(LENGTHS), 7):
        for size in {1, len(LENGTHS) - first}:
            assert read(file, index.segment(0, first, size)) == LENGTHS[first : first + size]


def test_examples_of_one_size_are_found_without_reading_their_headers(tmp_path, monkeypatch):
    file = write(tmp_path / "a", [44] * 50)
    monkeypatch.setattr(record_index, "_lengths", lambda *_: pytest.fail("a header was read"))
    index = RecordIndex([file], "", [50], one_size=True)
    assert index.segment(0, 7, 3)[:4] == (0, 7 * 60, 0, 3)


def test_examples_of_other_sizes_are_not_mistaken_for_ones_of_one_size(tmp_path):
    file = write(tmp_path / "a", [10, 20, 30])
    assert os.path.getsize(file) % 3 == 0
    assert RecordIndex([file], "", [3], one_size=True).segment(0, 1, 1).offset == 26


def test_only_the_files_that_are_needed_are_looked_at(tmp_path):
    files = [write(tmp_path / name) for name in "ab"]
    os.remove(files[1])
    RecordIndex(files, "", [len(LENGTHS)] * 2).segment(0, 40, 5)


def test_a_segment_is_read_in_buffers_that_fit(tmp_path):
    lengths = [5000] * 200
    index = RecordIndex([write(tmp_path / "a", lengths)], "", None)
    for first, size in ((0, 200), (3, 2), (10, 61)):
        buffer = index.segment(0, first, size).buffer
        assert buffer <= 256 << 10
        assert 0 <= -(size * 5016) % buffer < 200


@pytest.mark.parametrize("cut", [1, 12, 5000])
def test_a_file_that_is_cut_short_is_named(tmp_path, cut):
    file = tmp_path / "broken"
    write(file)
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(DataError, match=rf"{file} is cut short or damaged after {len(LENGTHS) - 1} examples"):
        print(RecordIndex([str(file)], "", None).counts)


def test_a_folder_is_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        print(RecordIndex([str(tmp_path)], "", None).counts)
    with pytest.raises(FileError, match="cannot be read"):
        count_by_reading(str(tmp_path), "")


def test_a_sum_is_compared_with_the_files(tmp_path):
    files = [write(tmp_path / name, [3] * count) for name, count in (("a", 4), ("b", 5))]
    assert RecordIndex(files, "", 9).counts == (4, 5)
    with pytest.raises(DataError, match=r"num_examples=8 was asked for, but the 2 files hold 9 examples: 4, 5"):
        print(RecordIndex(files, "", 8).counts)


def test_too_few_examples_in_a_file_are_said(tmp_path):
    index = RecordIndex([write(tmp_path / "a", [3] * 4)], "", [5])
    with pytest.raises(DataError, match="a should hold 5 examples, found 4"):
        index.segment(0, 1, 2)


def test_reading_through_is_said(tmp_path, caplog):
    files = [write(tmp_path / name, np.arange(5), "GZIP") for name in "ab"]
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        index = RecordIndex(files, "GZIP", None)
        assert index.counts == index.counts == (5, 5)
    assert [record.message for record in caplog.records] == [
        "Reading 2 files through to count their examples; records(num_examples=[...]), with one number for each file, "
        "spares it."
    ]
    caplog.clear()
    assert RecordIndex(files, "GZIP", [5, 5]).counts == (5, 5)
    assert not caplog.records
