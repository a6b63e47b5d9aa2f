"""Any data in Loop: recipes and the user's own datasets, of known, unknown and endless length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import linear, plain_dataset, values_of

from mirrorkit.train.input.input import Input


def _losses_of(line: Any, numbers: Any, *batches: range) -> list[float]:
    """The mean squared error of the untouched `line` on each set of batches of 10."""
    weights = values_of(line)
    error = (linear(weights, numbers[0]) - numbers[1]) ** 2
    return [float(np.mean([error[i * 10 : i * 10 + 10] for i in indices])) for indices in batches]


def test_steps_per_epoch_goes_on_through_the_data(line: Any, numbers: Any) -> None:
    """Six batches, four in an epoch: 0 1 2 3, then 4 5 0 1. With a learning rate of 0 the loss tells which."""
    line.step.optimizer.learning_rate = 0.0
    data = plain_dataset(*numbers, batch=10)
    report = line.fit(data, epochs=2, steps_per_epoch=4, verbose=0)
    expected = _losses_of(line, numbers, range(4), [4, 5, 0, 1])
    np.testing.assert_allclose(report.history["loss"], expected, rtol=1e-5)
    assert [epoch.steps for epoch in report.epochs] == [4, 4]


def test_endless_validation_data_starts_anew(line: Any, numbers: Any) -> None:
    line.step.optimizer.learning_rate = 0.0
    data = plain_dataset(*numbers, batch=10)
    history = line.fit(data, epochs=3, validation_data=data.repeat(), validation_steps=2, verbose=0).history
    np.testing.assert_allclose(history["val_loss"], _losses_of(line, numbers, range(2)) * 3, rtol=1e-5)


def _next(epoch: Any, count: int = 1) -> list[int]:
    """Take the next batches, each of one number, as a call does."""
    found = [int(epoch.read(0)[0]) for _ in range(count)]
    epoch.advance(count)
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
        before, ended = batches, epoch + 1


def test_finite_data_start_again_in_each_epoch() -> None:
    data = Input(tf.distribute.get_strategy(), tf.data.Dataset.range(4).batch(1), steps=3)
    assert [_next(data.epoch(epoch), 3) for epoch in range(2)] == [[0, 1, 2]] * 2
    assert _next(data.epoch(1, start=2)) == [2]


def test_carried_on_data_start_again_at_their_end() -> None:
    data = Input(tf.distribute.get_strategy(), tf.data.Dataset.range(4).batch(1), steps=3, carry_on=True)
    assert [_next(data.epoch(epoch), 3) for epoch in range(3)] == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]
