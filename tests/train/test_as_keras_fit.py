"""`Loop` and the installed Keras's own `fit` and `evaluate` come to the same numbers, where Keras 3.16 changed some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import needs_keras
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras

_ROWS, _BATCH = 24, 8


def _data() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(_ROWS, 4)).astype("float32"), np.arange(_ROWS) % 4
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH, drop_remainder=True)


def _compiled(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = sequential((4,), keras.layers.Dense(4, activation="softmax"))
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", **options)
    return model


@needs_keras((3, 16), "a weight of 1 for classes that class_weight leaves out")
@pytest.mark.parametrize("class_weight", [{0: 3, 2: 0.5}, {1: 0.25}, {}], ids=str)
def test_classes_without_a_weight_weigh_1(strategy_of: Any, class_weight: dict[int, float]) -> None:
    model = _compiled()
    expected = model.fit(_data(), epochs=2, class_weight=class_weight, verbose=0)
    strategy = strategy_of("mirrored", 3)
    with strategy.scope():
        ours = _compiled()
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(ours))
    found = loop.fit(_data(), epochs=2, class_weight=class_weight, verbose=0)
    for want, got in zip(model.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], rtol=1e-5)


def test_metrics_of_evaluate_on_batches_of_one_size_are_those_of_keras(strategy_of: Any) -> None:
    metrics = ["accuracy", "sparse_top_k_categorical_accuracy"]
    expected = _compiled(metrics=metrics).evaluate(_data(), return_dict=True, verbose=0)
    strategy = strategy_of("mirrored", 3)
    with strategy.scope():
        ours = _compiled(metrics=metrics)
    found = mk.train.Loop(strategy, mk.train.Step.from_compiled(ours)).evaluate(_data())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
