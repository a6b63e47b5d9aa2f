"""Streams: every example once, each batch its rows, whoever asks; and what is left of interleaved files."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorkit.data.record_streams import MOST, Streams, draw_streams, remaining

counts_of_files = st.lists(st.integers(0, 60), min_size=1, max_size=90).filter(sum)


def draw(counts: list[int], size: int, epoch: int = 0, seed: int = 0, seekable: bool = True) -> Streams:
    return draw_streams(counts, batch_size=min(size, sum(counts)), seed=seed, epoch=epoch, seekable=seekable)


@settings(deadline=None)
@given(counts_of_files, st.integers(1, 200), st.integers(0, 5), st.booleans())
def test_the_streams_hold_every_example_once_and_give_each_batch_its_rows(counts, size, epoch, seekable):
    streams = draw(counts, size, epoch, seekable=seekable)
    held = [(p.file, p.first + i) for pieces in streams.pieces for p in pieces for i in range(p.size)]
    assert sorted(held) == [(file, i) for file, count in enumerate(counts) for i in range(count)]
    sizes = [sum(piece.size for piece in pieces) for pieces in streams.pieces]
    assert 1 <= len(sizes) <= MOST
    np.testing.assert_array_equal(np.diff(streams.last.totals) + np.diff(streams.whole.totals), sizes)
    if seekable:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert all(
            piece.first == 0 and piece.size == counts[piece.file] for pieces in streams.pieces for piece in pieces
        )
    # every batch takes its rows, and the streams end together
    size = min(size, sum(counts))
    taken = streams.whole.taken(np.arange(streams.whole.number + 1))
    given_by = np.diff(taken, axis=0)  # by each stream, before each batch
    rows = np.diff(given_by)
    assert (rows >= 0).all()
    assert (rows.sum(axis=0) == size).all()
    assert (rows.max(axis=1) - rows.min(axis=1) <= 2).all()
    np.testing.assert_array_equal(given_by[:, -1], np.diff(streams.whole.totals))
    assert streams.last.totals[-1] == sum(counts) % size


@settings(deadline=None)
@given(counts_of_files, st.integers(2, 200), st.booleans(), st.data())
def test_the_streams_of_rows_are_those_that_give_them(counts, size, seekable, draws):
    streams = draw(counts, size, seekable=seekable)
    size = min(size, sum(counts))
    first = draws.draw(st.integers(0, size - 1))
    end = draws.draw(st.integers(first + 1, size))
    ends = np.diff(
        streams.whole.taken(np.arange(streams.whole.number + 1))
    )  # in each batch: the row at which a stream begins
    gives = [
        s for s in range(len(streams.pieces)) if ((ends[s] < end) & (ends[s + 1] > np.maximum(ends[s], first))).any()
    ]
    found = streams.whole.streams_of(first, end)
    assert set(gives) <= set(found)
    assert len(found) <= len(gives) + 2  # one on each side may have a part of a row


def test_large_sets_do_not_overflow():
    total = 2_000_000_011
    streams = draw([total // 3] * 3 + [total - total // 3 * 3], 64)
    taken = streams.whole.taken(np.array([0, streams.whole.number // 2, streams.whole.number]))
    assert (np.diff(taken) > 0).sum() == 2 * len(streams.pieces)
    assert taken[-1].tolist() == [0, streams.whole.number // 2 * 64, streams.whole.number * 64]


def test_seed_and_epoch_draw_other_streams():
    made = {draw([50, 70, 90], 16, epoch, seed).pieces for epoch in range(3) for seed in range(3)}
    assert len(made) == 9
    assert draw([50, 70, 90], 16, 2, 1).pieces in made


def test_the_rows_of_a_replica_come_from_places_far_apart():
    """Neighbours in the files are not neighbours in a batch, or a replica would get few classes of a sorted set."""
    streams = draw([6400], 64)
    begins = np.array([pieces[0].first for pieces in streams.pieces])
    assert (np.abs(np.diff(begins)) > 200).mean() > 0.8


def test_part_of_a_stream():
    streams = draw([5, 5, 5], 1, seekable=False)  # one row per batch: one stream
    (pieces,) = streams.pieces
    assert [piece.size for piece in pieces] == [5, 5, 5]
    assert list(streams.part(0, 3, 11)) == [(pieces[0].file, 3, 2), (pieces[1].file, 0, 5), (pieces[2].file, 0, 1)]
    assert list(streams.part(0, 5, 5)) == []


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 108))
@example([1, 3, 2], 2, 3)  # the file that has ended misses its turn
def test_remaining_pieces_go_on_as_the_files_do(counts, together, skip):
    skip = min(skip, sum(counts))

    def interleaved(pieces) -> list[int]:
        pieces = np.array(pieces, np.int64).reshape(-1, 3)
        if not len(pieces):
            return []
        read = tf.data.Dataset.from_tensor_slices(pieces).interleave(
            lambda piece: tf.data.Dataset.range(piece[1], piece[1] + piece[2]).map(lambda i: piece[0] * 100 + i),
            cycle_length=min(together, len(pieces)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return list(read.as_numpy_iterator())

    whole = interleaved([(file, 0, count) for file, count in enumerate(counts)])
    assert interleaved(remaining(counts, together, skip)) == whole[skip:]
