"""What the equivalence table does not tell: batches of one, the default strategy. Loops by hand: the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import train_by_hand
from training_helpers import keras_twin, largest_difference, plain_dataset, sequential, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.train.callback import LoopCallback, call_periods

L = keras.layers


def test_a_batch_of_one_trains_like_on_one_device(make_loop: Any) -> None:
    """Max pooling's gradient would kill the process on an empty share, BatchNorm's statistics would become NaN."""

    def net() -> Any:
        layers = [L.Dense(3), L.BatchNormalization(), L.MaxPool2D(), L.Flatten(), L.Dropout(0.0), L.Dense(1)]
        return sequential((4, 4, 1), *layers)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 4, 4, 1)).astype("float32"), rng.normal(size=(3, 1)).astype("float32")
    data = plain_dataset(x, y, batch=1)
    loop = make_loop(("mirrored", 2), net)
    model = keras_twin(net, loop)
    losses = train_by_hand(model, keras.optimizers.SGD(0.1), data)
    np.testing.assert_allclose(loop.fit(data, verbose=0).history["loss"], np.mean(losses), rtol=1e-4)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 2.4e-7
    predicted = model(x).numpy()
    assert loop.evaluate(data)["loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-4)
    np.testing.assert_allclose(loop.predict(data), predicted, atol=1e-5)


# --- TensorFlow's default strategy, as a script has it that never made one: everything works as on one device


def _net() -> Any:
    return sequential((4,), L.BatchNormalization(synchronized=True), L.Dropout(0.2), L.Dense(1))


def _loop(strategy: Any, **options: Any) -> mk.train.Loop:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = _net(), keras.optimizers.SGD(0.05, momentum=0.5)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", metrics=["mae"], **options))


def test_a_loop_trains_validates_predicts_and_resumes(strategy_of: Any, numbers: Any, tmp_path: Path) -> None:
    options = {"accumulate": 2, "loss_scale": 64.0, "ema": 0.9, "clip_norm": 1.0}
    data = mk.data.resident(mk.data.arrays(*numbers), global_batch_size=20, shuffle=True, seed=0)
    loop, other = (_loop(s, **options) for s in (tf.distribute.get_strategy(), strategy_of("one_device", 1)))
    loop.warm_up(data)
    callbacks = [mk.train.Checkpoints(tmp_path), mk.checks.NanWatch(), mk.checks.InSync()]
    found = loop.fit(data, epochs=2, validation_data=data, callbacks=callbacks, verbose=0).history
    assert found == other.fit(data, epochs=2, validation_data=data, verbose=0).history
    trained = values_of(loop)
    assert largest_difference(trained, values_of(other)) == 0
    np.testing.assert_array_equal(loop.predict(data), other.predict(data))
    other.fit(data, verbose=0)
    assert other.restore(tmp_path).epoch == 2
    assert largest_difference(trained, values_of(other)) == 0


# --- what callbacks tell the loop, and the loop them


class _OfTheUser(keras.callbacks.Callback):
    """Knows the loop without being a LoopCallback."""

    def __init__(self, every: Any) -> None:
        super().__init__()
        self.every = every

    def set_loop(self, loop: Any) -> None:
        pass


def test_periods_are_asked_of_callbacks_that_know_the_loop() -> None:
    without_set_loop = keras.callbacks.Callback()
    without_set_loop.every = 7
    without_every = _OfTheUser(1)
    del without_every.every
    callbacks = [mk.checks.InSync(every=5), LoopCallback(), _OfTheUser(2), _OfTheUser("often")]
    savers = [keras.callbacks.ModelCheckpoint("a.keras", save_freq=freq) for freq in (3, 0, -1, "epoch")]
    assert call_periods([*callbacks, *savers, without_set_loop, without_every]) == [5, 2, 3]


def test_a_loop_callback_wants_nothing_by_itself() -> None:
    callback = LoopCallback()
    callback.on_non_finite_loss(NonFiniteLossError("a message", step=0, epoch=0, batch=0))
    callback.release()
    assert callback.loop is None
