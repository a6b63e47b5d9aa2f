"""How the batches of an epoch are divided into runs of updates that are alike."""

from __future__ import annotations

import pytest
import tensorflow as tf

from mirrorkit.train.input.epoch import EpochIterator, HostIterator, UpdateRun


def _iterator(steps: int | None, *, whole: int, last: int | None = None, position: int = 0) -> EpochIterator:
    return EpochIterator(None, steps=steps, size=8, whole=whole, last=last, position=position)


@pytest.mark.parametrize(
    ("position", "steps", "accumulate", "expected"),
    [
        (0, 5, 1, [UpdateRun(0, 5, (8,))]),
        (0, 6, 1, [UpdateRun(0, 5, (8,)), UpdateRun(5, 1, (3,))]),  # the last batch is a smaller one
        (2, 2, 1, [UpdateRun(2, 2, (8,))]),
        (5, 1, 1, [UpdateRun(5, 1, (3,))]),
        (0, 6, 2, [UpdateRun(0, 2, (8, 8)), UpdateRun(4, 1, (8, 3))]),
        (0, 5, 2, [UpdateRun(0, 2, (8, 8)), UpdateRun(4, 1, (8,))]),
        (0, 6, 3, [UpdateRun(0, 1, (8, 8, 8)), UpdateRun(3, 1, (8, 8, 3))]),
        (0, 6, 4, [UpdateRun(0, 1, (8,) * 4), UpdateRun(4, 1, (8, 3))]),
        (4, 2, 4, [UpdateRun(4, 1, (8, 3))]),
        (0, 0, 1, []),
    ],
)
def test_runs_of_like_updates(position: int, steps: int, accumulate: int, expected: list[UpdateRun]) -> None:
    data = _iterator(6, whole=5, last=3, position=position)
    parts = list(data.parts(steps, accumulate))
    assert parts == expected
    assert sum(part.batches for part in parts) == steps


def test_updates_of_batches_of_unknown_size_are_made_in_one_call() -> None:
    data = EpochIterator(None, steps=5, size=None, whole=0)
    assert list(data.parts(5, 2)) == [UpdateRun(0, 2, (None, None)), UpdateRun(4, 1, (None,))]


def test_the_place_in_the_epoch() -> None:
    data = _iterator(6, whole=5, last=3, position=1)
    assert data.left == 5
    data.advance(4)
    assert (data.position, data.left) == (5, 1)
    assert [data.size_of(batch) for batch in (0, 4, 5)] == [8, 8, 3]
    assert _iterator(None, whole=0).left is None


def test_batches_that_were_looked_at_are_a_part_of_their_own() -> None:
    def data(look_at: int) -> HostIterator:
        made = HostIterator(tf.data.Dataset.range(48).batch(8), steps=6, size=8, whole=6)
        if look_at:
            made.look_at(look_at)
        return made

    assert list(data(0).parts(6, 2)) == [UpdateRun(0, 3, (8, 8))]
    assert list(data(2).parts(6, 2)) == [UpdateRun(0, 1, (8, 8)), UpdateRun(2, 2, (8, 8))]
    assert list(data(1).parts(1)) == [UpdateRun(0, 1, (8,))]
    looked = data(1)
    looked.advance(1)  # by a call that took them
    assert list(looked.parts(5)) == [UpdateRun(1, 5, (8,))]
    assert next(looked.source).numpy().tolist() == list(range(8, 16))
