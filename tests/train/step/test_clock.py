"""What the host counts within a call: schedules and seeds follow from the step, whatever the length of the calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L, S = keras.layers, keras.optimizers.schedules


def _data() -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, x[:, :1] - x[:, 1:2]), global_batch_size=8, shuffle=True)


def _weights(make_loop: Any, optimizer: Any, *layers: Any, **options: Any) -> list[Any]:
    net = lambda: sequential((4,), L.Dense(6), *(make() for make in layers), L.Dense(1))  # noqa: E731
    loop = make_loop(("mirrored", 2), net, optimizer, **options)
    loop.fit(_data(), epochs=2, verbose=0)
    return loop.step.model.get_weights()


def _rising() -> Any:
    return keras.optimizers.SGD(S.CosineDecay(0.0, 8, warmup_target=0.2, warmup_steps=5))


class AsksItsSchedule(keras.optimizers.SGD):
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> Any:
        return super().update_step(gradient, variable, self._learning_rate(self.iterations))


def _decaying(cls: Any) -> Any:
    return lambda: cls(S.ExponentialDecay(0.2, 3, 0.5))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"accumulate": 2, "loss_scale": "dynamic"}, marks=pytest.mark.slow)],
    ids=["schedule", "accumulate and loss scale"],
)
def test_the_length_of_calls_changes_no_bit(options: Any, make_loop: Any) -> None:
    drop = lambda: L.Dropout(0.4)  # noqa: E731
    np.testing.assert_equal(*(_weights(make_loop, _rising, drop, steps_per_call=n, **options) for n in (1, 4)))


def test_an_optimizer_of_ones_own_works_its_rate_out_itself(make_loop: Any) -> None:
    own, of_keras = (_decaying(cls) for cls in (AsksItsSchedule, keras.optimizers.SGD))
    np.testing.assert_equal(_weights(make_loop, own), _weights(make_loop, of_keras))


def test_each_step_draws_its_own_numbers(make_loop: Any) -> None:
    """On data that are the same in every batch, with weights that stay, only the masks make the loss differ."""
    net = lambda: sequential((4,), L.Dropout(0.5), L.Dense(1, kernel_initializer="ones"))  # noqa: E731
    loop = make_loop(("one_device", 1), net, lambda: keras.optimizers.SGD(0.0), steps_per_call=1)
    losses: list[float] = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    x = np.ones((80, 4), np.float32)
    loop.fit(plain_dataset(x, x[:, :1], batch=8), verbose=0, callbacks=[seen])
    means = np.diff(np.arange(1, 11) * np.array(losses))  # of each batch, from the running means
    assert len(set(np.round(means, 4))) > 6


@pytest.mark.parametrize(
    "first",
    [pytest.param(0.1, marks=pytest.mark.slow), S.ExponentialDecay(0.1, 3, 0.5)],
    ids=["number", "schedule"],
)
def test_a_schedule_that_is_assigned_later_is_refused(first: Any, make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, lambda: keras.optimizers.SGD(first))
    loop.fit(_data(), verbose=0)
    loop.step.optimizer.learning_rate = S.ExponentialDecay(0.2, 3, 0.5)
    with pytest.raises(StepError, match="learning rate became another schedule"):
        loop.fit(_data(), verbose=0)


def test_a_schedule_with_a_state_is_refused(make_loop: Any) -> None:
    class Counts(S.LearningRateSchedule):
        def __init__(self) -> None:
            self.calls = tf.Variable(0.0, trainable=False)

        def __call__(self, step: Any) -> Any:
            self.calls.assign_add(1.0)
            return 0.1 / (1 + self.calls)

    with pytest.raises(StepError, match="state that is not among its own"):
        make_loop(("one_device", 1), line_net, lambda: keras.optimizers.SGD(Counts())).fit(_data(), verbose=0)


def test_a_map_that_changes_the_number_of_examples_is_refused(make_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorkit.data.preparation.require_by_row", lambda *given: None)  # sees the first rows alone

    def twice(x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.concat([x, -x], 0), tf.concat([y, y], 0)

    data = mk.data.batches(_data().split, global_batch_size=8, map=twice)
    with pytest.raises(StepError, match="must keep the number of examples"):
        make_loop(("one_device", 1), line_net).fit(data, verbose=0)
