"""A callback that switches on what the first batch did not show is noticed at the next epoch."""

from __future__ import annotations

from typing import Any

import pytest
from first_batch_helpers import TWO, X
from training_helpers import line_net, plain_dataset, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
ops = keras.ops
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


class _SwitchOn(keras.callbacks.Callback):
    """In the midst of the first epoch."""

    def __init__(self, switch: Any, value: float) -> None:
        super().__init__()
        self.switch, self.value = switch, value

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.switch.assign(self.value)


class _Centers(L.Layer):  # type: ignore[name-defined]
    def build(self, shape: Any) -> None:
        self.share = self.add_weight(shape=(), initializer="zeros", trainable=False, name="share")

    def call(self, x: Any, training: bool = False) -> Any:
        return x - self.share * ops.mean(x, axis=0, keepdims=True) if training else x


def _fit(loop: Any, switch: Any, value: float) -> None:
    loop.fit(plain_dataset(X, X[:, :1], batch=8), epochs=3, callbacks=[_SwitchOn(switch, value)], verbose=0)
    assert loop.step.optimizer.iterations == 9


def test_a_layers_switch(make_loop: Any) -> None:
    def loop() -> Any:
        return make_loop(TWO, lambda: sequential((4,), L.Dense(3), _Centers(), L.Dense(1)), steps_per_call=1)

    one = loop()
    with pytest.raises(StepError, match=r"depends on the other examples.*training=True"):
        _fit(one, one.step.model.layers[1].share, 1.0)
    assert one.step.optimizer.iterations == 3
    same = loop()
    _fit(same, same.step.model.layers[1].share, 0.0)


def test_a_variable_that_a_loss_reads(make_loop: Any) -> None:
    def loop(count: Any) -> Any:
        def loss(y: Any, y_pred: Any) -> Any:
            each = ops.mean(ops.square(y - y_pred), -1)
            return ops.where(ops.arange(ops.shape(each)[0]) < count, each, 0.5 * each)

        return make_loop(TWO, line_net, loss=loss, steps_per_call=1)

    count = keras.Variable(100, trainable=False, dtype="int32")
    with pytest.raises(StepError, match=r"\(loss\) of a batch"):
        _fit(loop(count), count, 6)
    count = keras.Variable(100, trainable=False, dtype="int32")
    _fit(loop(count), count, 50)  # another number, and as right as before
