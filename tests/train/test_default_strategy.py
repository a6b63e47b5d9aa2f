"""TensorFlow's default strategy, as a script has it that never made one: everything works as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from training_helpers import largest_difference, sequential, values_of

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


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
