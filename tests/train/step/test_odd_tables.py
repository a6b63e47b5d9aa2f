"""Tables where joined weights, or an update without rows, need care."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit._keras import keras

_BATCH = 6


def _trained(make_loop: Any, replicas: int, net: Any, x: Any, sparse_embeddings: Any, tables: int) -> list[np.ndarray]:
    loop = make_loop(("mirrored", replicas), net, sparse_embeddings=sparse_embeddings)
    y = np.linspace(-1, 1, 2 * _BATCH, dtype="float32")[:, np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH, drop_remainder=True)
    loop.fit(data, epochs=2, verbose=0)
    assert len(loop.step.for_loop(loop.strategy).functions.tables) == tables
    found: list[np.ndarray] = loop.step.model.get_weights()
    return found


def _assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("replicas", [1, 3])
def test_batches_that_look_up_no_row(make_loop: Any, replicas: int) -> None:
    def net() -> Any:
        words, numbers = keras.Input([0], dtype="int32"), keras.Input([2])
        of_words = keras.ops.sum(keras.layers.Embedding(2**16, 4)(words), axis=1)
        return keras.Model([words, numbers], keras.layers.Dense(1)(keras.ops.concatenate([of_words, numbers], axis=1)))

    x = np.zeros([2 * _BATCH, 0], "int32"), np.arange(4 * _BATCH, dtype="float32").reshape(-1, 2) / 24
    expected = _trained(make_loop, replicas, net, x, False, 0)
    _assert_close(_trained(make_loop, replicas, net, x, "auto", 1), expected)


@pytest.mark.parametrize("replicas", [1, 3])
def test_small_tables_of_one_width_are_not_joined(make_loop: Any, replicas: int) -> None:
    """Other small weights are; plain SGD leaves rows alone that nothing looks up, so that lazy makes no difference."""

    def net() -> Any:
        ids = keras.Input([3], dtype="int32")
        rows = [keras.layers.Embedding(size, 4)(ids[:, i]) for i, size in enumerate([5, 6, 7])]
        return keras.Model(ids, keras.layers.Dense(1)(keras.ops.concatenate(rows, axis=1)))

    x = np.random.default_rng(0).integers(0, 5, size=[2 * _BATCH, 3]).astype("int32")
    expected = _trained(make_loop, replicas, net, x, False, 0)
    _assert_close(_trained(make_loop, replicas, net, x, "lazy", 3), expected)
