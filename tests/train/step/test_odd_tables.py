"""Tables that a batch looks up in odd ways: no row, rows that depend on the share; small ones of one width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

pytestmark = pytest.mark.usefixtures("small_tables")

_BATCH = 7  # on three replicas 3, 3 and 1


def _trained(make_loop: Any, net: Any, x: Any, sparse_embeddings: Any, tables: int) -> list[np.ndarray]:
    loop = make_loop(("mirrored", 3), net, sparse_embeddings=sparse_embeddings)
    y = np.linspace(-1, 1, 2 * _BATCH, dtype="float32")[:, np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH, drop_remainder=True)
    loop.fit(data, epochs=2, verbose=0)
    assert len(loop.step.for_loop(loop.strategy).functions.tables) == tables
    found: list[np.ndarray] = loop.step.model.get_weights()
    return found


def _assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.cpu
def test_batches_that_look_up_no_row(make_loop: Any) -> None:
    def net() -> Any:
        words, numbers = keras.Input([0], dtype="int32"), keras.Input([2])
        of_words = keras.ops.sum(keras.layers.Embedding(2**16, 4)(words), axis=1)
        return keras.Model([words, numbers], keras.layers.Dense(1)(keras.ops.concatenate([of_words, numbers], axis=1)))

    x = np.zeros([2 * _BATCH, 0], "int32"), np.arange(4 * _BATCH, dtype="float32").reshape(-1, 2) / (4 * _BATCH)
    expected = _trained(make_loop, net, x, False, 0)
    _assert_close(_trained(make_loop, net, x, "auto", 1), expected)


def test_small_tables_of_one_width_are_not_joined(make_loop: Any) -> None:
    """Other small weights are; plain SGD leaves rows alone that nothing looks up, so that lazy makes no difference."""

    def net() -> Any:
        ids = keras.Input([3], dtype="int32")
        rows = [keras.layers.Embedding(size, 4)(ids[:, i]) for i, size in enumerate([5, 6, 7])]
        return keras.Model(ids, keras.layers.Dense(1)(keras.ops.concatenate(rows, axis=1)))

    x = np.random.default_rng(0).integers(0, 5, size=[2 * _BATCH, 3]).astype("int32")
    expected = _trained(make_loop, net, x, False, 0)
    _assert_close(_trained(make_loop, net, x, "lazy", 3), expected)


class _ByShare(keras.layers.Layer):
    """Looks up rows, or multiplies with the whole table, depending on how many examples it is given."""

    def __init__(self, *, dense: int) -> None:
        super().__init__()
        self.table, self.dense = keras.layers.Embedding(2**16, 4), dense

    def build(self, shape: Any) -> None:
        self.table.build()

    def call(self, ids: Any) -> Any:
        if ids.shape[0] != self.dense:
            return self.table(ids)
        return tf.one_hot(ids, 2**16) @ tf.convert_to_tensor(self.table.embeddings)


def _trained_by_share(make_loop: Any, dense: int, sparse_embeddings: Any, tables: int) -> list[np.ndarray]:
    def net() -> Any:
        ids = keras.Input([3], dtype="int32")
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(_ByShare(dense=dense)(ids))))

    x = np.random.default_rng(0).integers(0, 2**16, size=[2 * _BATCH, 3]).astype("int32")
    return _trained(make_loop, net, x, sparse_embeddings, tables)


@pytest.mark.cpu
def test_a_share_has_rows_where_the_largest_is_dense(make_loop: Any) -> None:
    _assert_close(_trained_by_share(make_loop, 3, "auto", 1), _trained_by_share(make_loop, 3, False, 0))


@pytest.mark.cpu
def test_a_share_with_more_rows_than_the_largest_is_refused(make_loop: Any) -> None:
    with pytest.raises(StepError, match=r"looks up more rows of '.*embeddings' than one with more examples"):
        _trained_by_share(make_loop, 1, "auto", 1)
