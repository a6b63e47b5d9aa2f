"""Datasets of several datasets, whose shapes TensorFlow does not know in its kernels, train as in `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.input.epoch import HostIterator

_X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
_SET = tf.data.Dataset.from_tensor_slices((_X, _X[:, :1]))
_TWICE = tf.data.Dataset.range(2).repeat(60)

FORMS: dict[str, Callable[[], tf.data.Dataset]] = {
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([_SET, _SET], [0.5, 0.5], seed=1).batch(12),
    "chosen batches": lambda: tf.data.Dataset.choose_from_datasets([_SET.batch(12), _SET.batch(12)], _TWICE),
}


def _compiled() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("form", FORMS)
def test_it_trains_as_in_fit(form: str, strategy_of: Any) -> None:
    expected, data = _compiled(), FORMS[form]()
    expected.fit(data, verbose=0)
    strategy = strategy_of("mirrored", 3)
    with strategy.scope():
        model = _compiled()
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    loop.fit(data, steps_per_epoch=10, validation_data=data, validation_steps=10, verbose=0)
    for want, found in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["ragged", "sparse", "dict"])
def test_batches_that_were_looked_at_are_as_they_were(kind: str) -> None:
    rows = {
        "ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]),
        "sparse": (tf.sparse.from_dense(np.eye(3)), np.arange(3)),
        "dict": {"a": np.arange(3), "b": np.zeros([3, 2])},
    }[kind]
    data = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    iterator = HostIterator(data, steps=None, size=None, whole=0)
    iterator.look_at(2)
    assert iterator.source.element_spec == data.element_spec
    for number, expected in enumerate(data):
        found = iterator.read(number)
        parts = [tf.nest.flatten(nest, expand_composites=True) for nest in (found, expected)]
        for one, other in zip(*parts, strict=True):
            np.testing.assert_array_equal(one, other)
    assert iterator.read(2) is None
