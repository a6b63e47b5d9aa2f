"""The check of the first batch sees what is wrong with the gradient of a table, which it compares in few rows."""

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


class OfBatch(keras.layers.Embedding):
    """Its outputs are right, and its gradient is multiplied by the number of rows of the batch."""

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
        def scaled(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return x, lambda gradient: gradient * tf.cast(tf.shape(x)[0], x.dtype)

        return scaled(super().call(inputs))


def _fit(make_loop: Any, kind: type, optimizer: Any) -> mk.train.Loop:
    def net() -> Any:
        layers = [kind(_SIZE, _WIDTH, name="table"), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

    loop: mk.train.Loop = make_loop(("mirrored", 2), net, optimizer)
    rng = np.random.default_rng(0)
    split = mk.data.arrays(rng.integers(_SIZE, size=(32, 3)), rng.normal(size=(32, 1)).astype("float32"))
    loop.fit(mk.data.batches(split, global_batch_size=8), epochs=1, verbose=0)
    return loop


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adagrad, keras.optimizers.Adam])
def test_a_gradient_that_depends_on_the_size_of_the_batch(make_loop: Any, optimizer: Any) -> None:
    with pytest.raises(StepError, match=r"the gradient of 'sequential.*/table/embeddings' has the norm"):
        _fit(make_loop, OfBatch, optimizer)
    loop = _fit(make_loop, keras.layers.Embedding, optimizer)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == [0]
