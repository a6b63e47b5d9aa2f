"""A user's own step in Loop, and what the protocol refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Line, train_by_hand
from training_helpers import KINDS, largest_difference, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError


@pytest.fixture
def line(strategy_of: Any) -> mk.train.Loop:
    """A loop of a custom step on two replicas."""
    with strategy_of("mirrored", 2).scope():
        step = Line()
    return mk.train.Loop(strategy_of("mirrored", 2), step, steps_per_call=2)


def test_it_trains_on_replicas_as_by_hand(line: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    data, twin = plain_dataset(*numbers, batch=11), Line()  # the last batch holds 5
    report = line.fit(data, epochs=2, verbose=0)
    losses = np.reshape(train_by_hand(twin.net, twin.optimizer, [*data, *data]), [2, 6])
    assert largest_difference(line.step.net.get_weights(), twin.net.get_weights()) < 1e-5  # measured: 6e-8
    np.testing.assert_allclose(report.history["loss"], np.average(losses, 1, [11] * 5 + [5]), rtol=1e-5)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(60, 6)] * 2
    assert_replicas_equal(line)


def test_any_log_that_is_not_finite_stops_the_run(line: Any, numbers: Any) -> None:
    x = numbers[0].copy()
    x[35] = np.nan
    with pytest.raises(NonFiniteLossError) as error:
        line.fit(plain_dataset(x, numbers[1], batch=11), verbose=0)
    assert error.value.step == 3


class _Average:
    """The smallest step: moves one number to the mean of the data."""

    def __init__(self, logs: Any = None) -> None:
        self._logs = logs or (lambda mean, sums: {"loss": mean})

    def build(self, strategy: tf.distribute.Strategy) -> None:
        self.value = tf.Variable(0.0)  # `build` is called in the scope
        self.variables = [self.value]
        self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        return {"sum": tf.reduce_sum(batch), "examples": tf.cast(tf.shape(batch)[0], tf.float32)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        return self._update(sums)

    def _new_values(self, sums: Any, values: Any) -> Any:
        mean = sums["sum"] / sums["examples"]
        return [mean], self._logs(mean, sums)


def test_evaluate_and_predict_are_for_steps_that_say_how(strategy_of: Any) -> None:
    loop = mk.train.Loop(strategy_of("one_device", 1), _Average())
    data = tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4)
    for call in (loop.evaluate, loop.predict):
        with pytest.raises(StepError, match="_Average only trains"):
            call(data)
    with pytest.raises(StepError, match="evaluate needs"):
        loop.fit(data, validation_data=data, verbose=0)


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_a_plain_tensorflow_variable_will_do(where: Any, strategy_of: Any) -> None:
    step = _Average()
    loop = mk.train.Loop(strategy_of(*where), step)
    data = tf.data.Dataset.from_tensor_slices(tf.range(4, dtype=tf.float32)).batch(4)  # 2, 2, 0 on three replicas
    report = loop.fit(data, verbose=0)
    assert report.history == {"loss": [1.5]}
    copies = loop.strategy.experimental_local_results(step.value)
    assert [float(copy) for copy in copies] == [1.5] * (1 if where[0] == "central_storage" else where[1])


@pytest.mark.parametrize(
    ("logs", "match"),
    [
        (lambda mean, sums: {"loss": tf.stack([mean, mean])}, r"\['loss'\].*scalars"),
        (lambda mean, sums: {"loss": mean, "lr": 0.1}, r"\['lr'\].*scalars"),
    ],
    ids=["vector", "number"],
)
def test_logs_that_are_none(logs: Any, match: str, strategy_of: Any) -> None:
    loop = mk.train.Loop(strategy_of("mirrored", 2), _Average(logs))
    with pytest.raises(StepError, match=match):
        loop.fit(tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4), verbose=0)


def test_an_update_can_leave_a_variable_alone(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        moved, left = tf.Variable(1.0), keras.Variable(2.0)
    update = mk.train.Update(strategy, [moved, left], lambda sums, values: ([values[0] + sums, None], sums))
    total = tf.function(lambda: update(strategy.run(lambda: tf.constant(3.0))), autograph=False)()
    assert float(total) == 6.0  # summed over both replicas
    assert [float(copy) for copy in strategy.experimental_local_results(moved)] == [7.0, 7.0]
    assert float(left.numpy()) == 2.0


def test_sums_of_unknown_shape_are_refused(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    update = mk.train.Update(strategy, [], lambda sums, values: ([], sums))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,))])
    def run(x: tf.Tensor) -> Any:
        return update(strategy.run(lambda: x))

    with pytest.raises(StepError, match="static shape"):
        run(tf.ones(3))
