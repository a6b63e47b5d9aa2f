"""The number of examples in record files, and their places."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from source_files import record_header

from mirrorkit import data
from mirrorkit.data import record_reading
from mirrorkit.data.record_lengths import count_by_reading
from mirrorkit.data.record_reading import RecordReader
from mirrorkit.errors import DataError

LENGTHS = [0, 1, 700, 31, 2, *range(100), 5000]


def write(path, lengths=LENGTHS, compression: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for length in lengths:
            writer.write(b"x" * length)
    return str(path)


@pytest.mark.parametrize("prefix", ["", "file://"])  # "file://": as a file that is not local, which is read through
def test_every_example_is_found(tmp_path, prefix):
    file = write(tmp_path / "a")
    index = RecordReader([prefix + file], "", None)
    assert index.counts == (len(LENGTHS),)
    assert index.by_number == (not prefix)
    for first in range(0, len(LENGTHS), 19):
        for size in {1, len(LENGTHS) - first}:
            found = np.concatenate([*index._parts(0, first, size)])
            assert [*map(len, found)] == LENGTHS[first : first + size]


def test_examples_of_one_size_are_found_without_reading_their_headers(tmp_path, monkeypatch):
    file = write(tmp_path / "a", [44] * 50)
    monkeypatch.setattr(record_reading, "lengths_of", lambda *_: pytest.fail("a header was read"))
    index = RecordReader([file], "", [50], one_size=True)
    assert index.place(0, 7, 3) == (7 * 60, 3 * 60)


def test_examples_of_other_sizes_are_not_mistaken_for_ones_of_one_size(tmp_path):
    file = write(tmp_path / "a", [10, 20, 30])
    assert os.path.getsize(file) % 3 == 0
    assert RecordReader([file], "", [3], one_size=True).place(0, 1, 1) == (26, 36)


def test_a_segment_is_read_in_buffers_that_fit(tmp_path):
    lengths = [5000] * 200
    index = RecordReader([write(tmp_path / "a", lengths)], "", None)
    for first, size in ((0, 200), (3, 2), (10, 61)):
        _, length = index.place(0, first, size)
        buffer = record_reading._buffer(length)
        assert buffer <= 256 << 10
        assert 0 <= -(size * 5016) % buffer < 200


@pytest.mark.parametrize("cut", [1, 12, 5000])
def test_a_file_that_is_cut_short_is_named(tmp_path, cut):
    file = tmp_path / "broken"
    write(file)
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(DataError, match=rf"{file} .* after {len(LENGTHS) - 1} examples"):
        print(RecordReader([str(file)], "", None).counts)


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize(("place", "length"), [(0, 2**31), (0, 2**64 - 20), (1, 2**40)])
def test_a_forged_length_is_refused_before_memory_is_taken_for_it(tmp_path, compression, place, length):
    """TensorFlow takes as much memory as a length says, and ends the process where there is not so much."""
    file, content = tmp_path / "forged", Path(write(tmp_path / "a", [100] * 3)).read_bytes()
    forged = content[: 116 * place] + record_header(length) + content[116 * place + 12 :]
    file.write_bytes(gzip.compress(forged) if compression else forged)
    with pytest.raises(DataError, match=rf"{file} .* after {place} examples"):
        count_by_reading(str(file), compression)
    with pytest.raises(DataError, match=rf"{file} .* after {place} examples"):
        print(RecordReader([str(file)], compression, None).counts)
    if not place and length > 2**31:  # more than the file can hold, unpacked too
        with pytest.raises(DataError, match="after 0 examples"):
            data.records(str(file), global_batch_size=2, num_examples=3, decode=tf.strings.length).verify()
        with pytest.raises(DataError, match="forged is damaged"):
            data.records(str(file), global_batch_size=2, num_examples=3)


def test_gzip_files_are_counted_as_tensorflow_counts_them(tmp_path):
    """Of several members, and with examples longer than what is read at a time."""
    lengths = [*LENGTHS, 700_000]
    members = [Path(write(tmp_path / name, lengths, "GZIP")).read_bytes() for name in "ab"]
    (tmp_path / "both").write_bytes(b"".join(members))
    index = RecordReader([str(tmp_path / "both")], "GZIP", None)
    assert index.counts == (count_by_reading(str(tmp_path / "both"), "GZIP"),) == (2 * len(lengths),)


def test_another_number_of_examples_in_a_file_is_said(tmp_path):
    file = "file://" + write(tmp_path / "a", [3] * 4)  # that is believed until it is read
    for told in (3, 5):
        index = RecordReader([file], "", [told])
        assert index.counts == (told,)
        with pytest.raises(DataError, match=f"{told} examples, found 4"):
            index.place(0, 1, 2)


def test_reading_through_is_said(tmp_path, caplog):
    files = [write(tmp_path / name, np.arange(5), "GZIP") for name in "ab"]
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        index = RecordReader(files, "GZIP", None)
        assert index.counts == index.counts == (5, 5)
    (record,) = caplog.records
    assert record.message.startswith("Reading 2 files through to count their examples; records(num_examples=[...])")
    caplog.clear()
    assert RecordReader(files, "GZIP", [5, 5]).counts == (5, 5)
    assert not caplog.records
