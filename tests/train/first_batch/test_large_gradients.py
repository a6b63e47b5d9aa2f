"""The check of the first batch sees what is wrong with a large gradient, which it compares in few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

pytestmark = [
    pytest.mark.usefixtures("small_tables"),
    pytest.mark.filterwarnings("ignore:A global batch of"),
]

_SIZE, _WIDTH = 8192, 32


def _times(factor: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return `x`, whose gradient is multiplied."""

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def same(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return x, lambda gradient: gradient * tf.cast(factor, gradient.dtype)

    return same(x)


class OfBatch(keras.layers.Embedding):
    """Its outputs are right, and its gradient is multiplied by the number of rows of the batch."""

    def call(self, inputs: Any) -> Any:
        return _times(tf.shape(inputs)[0], super().call(inputs))


class DenseOfBatch(keras.layers.Dense):
    """The same of the kernel alone."""

    def call(self, inputs: Any) -> Any:
        return tf.matmul(inputs, _times(tf.shape(inputs)[0], tf.convert_to_tensor(self.kernel))) + self.bias


def _loop(make_loop: Any, kind: type, optimizer: Any, dense: type = keras.layers.Dense) -> mk.train.Loop:
    def net() -> Any:
        layers = [kind(_SIZE, _WIDTH, name="table"), keras.layers.GlobalAveragePooling1D(), dense(1, name="head")]
        return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

    loop: mk.train.Loop = make_loop(("mirrored", 2), net, optimizer)
    return loop


def _fit(*made: Any) -> mk.train.Loop:
    loop = _loop(*made)
    rng = np.random.default_rng(0)
    split = mk.data.arrays(rng.integers(_SIZE, size=(32, 3)), rng.normal(size=(32, 1)).astype("float32"))
    loop.fit(mk.data.batches(split, global_batch_size=8), epochs=1, verbose=0)
    return loop


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.Adagrad, pytest.param(keras.optimizers.Adam, marks=pytest.mark.slow)]
)
def test_a_gradient_that_depends_on_the_size_of_the_batch(make_loop: Any, optimizer: Any) -> None:
    with pytest.raises(StepError, match=r"gradients of 'sequential.*/table/embeddings'"):
        _fit(make_loop, OfBatch, optimizer)
    loop = _fit(make_loop, keras.layers.Embedding, optimizer)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == [0]


@pytest.mark.slow
def test_the_gradient_of_a_large_kernel(make_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorkit.train.first_batch.running._LARGE", _WIDTH - 1)  # numbers; the kernel has 32
    monkeypatch.setattr("mirrorkit.train.reduce.sparse_gradient._FOLDED", 4)
    optimizer = keras.optimizers.Adagrad
    with pytest.raises(StepError, match=r"gradients of 'sequential.*/head/kernel'"):
        _fit(make_loop, keras.layers.Embedding, optimizer, DenseOfBatch)
    _fit(make_loop, keras.layers.Embedding, optimizer)
