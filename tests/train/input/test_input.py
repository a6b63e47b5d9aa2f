"""Any data in Loop: recipes and the user's own datasets, of known, unknown and endless length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import linear, plain_dataset, values_of

from mirrorkit.train.input.input import Input


def test_endless_validation_data_starts_anew(line: Any, numbers: Any) -> None:
    line.step.optimizer.learning_rate = 0.0
    data = plain_dataset(*numbers, batch=10)
    expected = np.mean((linear(values_of(line), numbers[0][:20]) - numbers[1][:20]) ** 2)
    history = line.fit(data, epochs=3, validation_data=data.repeat(), validation_steps=2, verbose=0).history
    np.testing.assert_allclose(history["val_loss"], [expected] * 3, rtol=1e-5)


def _next(epoch: Any, count: int = 1) -> list[int]:
    """Take the next batches, each of one number, as a call does."""
    found = [int(epoch.read(0)[0]) for _ in range(count)]
    epoch.position += count
    return found


@pytest.mark.parametrize(
    ("first_epoch", "taken"),  # of each epoch where it begins, and what the next batches are
    [
        (0, [(0, 0, [0, 1, 2]), (1, 0, [3, 4, 5]), (2, 0, [6, 7, 8])]),
        (0, [(0, 0, [0, 1, 2]), (0, 0, [0, 1]), (2, 0, [6])]),
        (5, [(5, 0, [0, 1, 2]), (6, 0, [3])]),
        (1, [(2, 2, [5]), (3, 0, [6, 7, 8])]),
    ],
    ids=["one after the other", "the first again", "from the first that is trained", "resumed at a place"],
)
def test_endless_data_go_on_from_epoch_to_epoch(first_epoch: int, taken: Any) -> None:
    """Batches of one number, counted without end, in epochs of three; to go on they are not read again."""
    data = Input(tf.distribute.get_strategy(), tf.data.Dataset.counter().batch(1), steps=3)
    data.first_epoch, before, ended = first_epoch, None, None
    for epoch, start, expected in taken:
        batches = data.epoch(epoch, start=start)
        assert (batches is before) == (epoch == ended)
        assert (batches.position, batches.left) == (start, 3 - start)
        assert _next(batches, len(expected)) == expected
        if not batches.left:  # then nothing more is read, to be looked at
            assert data.at_hand(batches, 1) is None
        before, ended = batches, epoch + 1


@pytest.mark.parametrize(
    ("carry_on", "expected"), [(False, [[0, 1, 2], [0, 1, 2]]), (True, [[0, 1, 2], [3, 0, 1], [2, 3, 0]])]
)
def test_finite_data_start_again(carry_on: bool, expected: list[list[int]]) -> None:
    data = Input(tf.distribute.get_strategy(), tf.data.Dataset.range(4).batch(1), steps=3, carry_on=carry_on)
    assert [_next(data.epoch(epoch), 3) for epoch in range(len(expected))] == expected
