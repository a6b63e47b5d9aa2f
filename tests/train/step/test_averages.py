"""`ema`: averages of the weights, by Keras's own formula, and a look at the model through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import numbers_of
from training_helpers import line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


def test_what_a_block_does_not_allow(make_loop: Any, numbers: Any) -> None:
    """At its end the weights come back, after an error too, and what was trained on the averages would be gone."""
    loop, data = make_loop(("mirrored", 2), line_net, ema=0.5), plain_dataset(*numbers, batch=20)
    loop.fit(data, verbose=0)
    before = numbers_of(loop.step.variables)
    with pytest.raises(StepError, match="averages already"), loop.step.averaged(), loop.step.averaged():
        pass
    with pytest.raises(StepError, match=r"within step.averaged"), loop.step.averaged():
        loop.fit(data, verbose=0)
    assert all(map(np.array_equal, before, numbers_of(loop.step.variables)))


def test_before_the_first_update_the_averages_are_the_weights(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, ema=0.5)
    model = loop.step.model
    model.set_weights([np.full((4, 1), 3.0), np.array([2.0])])  # loaded after the step was built, say
    with loop.step.averaged():
        np.testing.assert_array_equal(model.get_weights()[0], np.full((4, 1), 3.0))


def test_averages_that_are_not_there(make_loop: Any, numbers: Any) -> None:
    loop, data = make_loop(("one_device", 1), line_net), plain_dataset(*numbers, batch=20)
    with pytest.raises(StepError, match=r"ema=0\.999"), loop.step.averaged():
        pass
    with pytest.raises(StepError, match=r"ema=0\.999"):
        loop.fit(data, validation_data=data, validation_averaged=True, verbose=0)
    step = mk.train.Step(line_net(), keras.optimizers.SGD(), loss="mse", ema=0.9)
    with pytest.raises(StepError, match="not built"), step.averaged():
        pass


# --- layer state


def test_a_model_that_another_step_trains_has_no_averages(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        one, other = (sequential((4,), L.Dense(4), L.BatchNormalization()) for _ in range(2))
        step = mk.train.Step.from_loss(
            [one, other],
            keras.optimizers.SGD(0.1),
            lambda batch: tf.reduce_mean(other(one(batch)) ** 2, -1),
            frozen=other,
            ema=0.9,
        )
    step.build(strategy)
    averages = [v.path for v in step.variables if v.path.startswith("average/")]
    assert len(averages) == len(one.variables) == 6


class Scaled(L.Layer):
    """Divides by a number that only a callback changes."""

    def build(self, shape: Any) -> None:
        self.by = self.add_weight(shape=(), initializer="ones", trainable=False, name="by")

    def call(self, x: Any) -> Any:
        return x / self.by


def test_state_that_no_update_computes_stays_in_a_block(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), Scaled(), L.Dense(1)), ema=0.5)
    loop.fit(plain_dataset(*numbers, batch=20), verbose=0)
    (by,) = loop.step.model.non_trainable_variables
    by.assign(5.0)
    trained = loop.step.model.get_weights()
    with loop.step.averaged():
        assert float(by.numpy()) == 5.0
        assert not np.array_equal(loop.step.model.get_weights()[1], trained[1])
    assert all(map(np.array_equal, loop.step.model.get_weights(), trained))


# --- validation on them


def test_fit_validates_on_the_averages(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), L.BatchNormalization(), L.Dense(1)), ema=0.9)
    data = plain_dataset(*numbers, batch=20)
    expected: list[float] = []

    def look(epoch: int, logs: Any) -> None:
        with loop.step.averaged():
            expected.append(loop.evaluate(data)["loss"])
        assert expected[-1] != pytest.approx(loop.evaluate(data)["loss"], rel=1e-3)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=look)
    options = {"validation_data": data, "validation_averaged": True}
    report = loop.fit(data, epochs=2, verbose=0, callbacks=[callback], **options)
    assert report.history["val_loss"] == pytest.approx(expected, rel=1e-6)
    assert len(expected) == 2
