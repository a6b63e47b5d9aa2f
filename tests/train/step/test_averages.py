"""`ema`: averages of the weights, by Keras's own formula, and a look at the model through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import cut, numbers_of, train
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


def _normalized() -> Any:
    frozen = sequential((4,), L.Dense(4, name="frozen"), L.BatchNormalization(name="frozen_norm"))
    frozen.trainable = False
    return sequential((4,), frozen, L.Dense(5), L.BatchNormalization(momentum=0.5, name="norm"), Shift(), L.Dense(1))


class Shift(L.Layer):
    """Has state that no update writes, with a value of which there is no average."""

    def build(self, shape: Any) -> None:
        self.shift = self.add_weight(shape=(5,), initializer="zeros", trainable=False, name="shift")
        self.shift.assign([-np.inf, 0, 0, 0, 0])

    def call(self, x: Any) -> Any:
        return tf.nn.softmax(x + self.shift)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"shard_optimizer": True}, marks=pytest.mark.slow)],
    ids=["plain", "shard_optimizer"],
)
def test_statistics_have_averages_too(
    options: dict[str, Any], make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    """The averages by hand, from the values after each update; a frozen layer has none."""
    loop = make_loop(("mirrored", 2), _normalized, ema=0.7, **options)
    model = loop.step.model
    moving = [v for v in model.variables if "frozen" not in v.path]
    expected: list[Any] = []
    for batch in cut(*numbers, sizes=[20, 20, 20]):
        train(loop, [batch])
        new = numbers_of(moving)
        expected = new if not expected else [0.7 * a + 0.3 * n for a, n in zip(expected, new, strict=True)]
    assert sum("average/" in v.path for v in loop.step.variables) == len(moving)
    model.layers[3].shift.assign([1.0, 2, 3, 4, -np.inf])  # by a callback, say; an update makes it the average
    with loop.step.averaged():
        assert_replicas_equal(loop)
        found = dict(zip([v.path for v in moving], numbers_of(moving), strict=True))
    for variable, value in zip(moving, expected, strict=True):
        np.testing.assert_allclose(found[variable.path], value, rtol=1e-5, atol=1e-6, err_msg=variable.path)
    train(loop, cut(*numbers, sizes=[20]))
    with loop.step.averaged():
        np.testing.assert_array_equal(model.layers[3].shift.numpy(), [1.0, 2, 3, 4, -np.inf])


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
