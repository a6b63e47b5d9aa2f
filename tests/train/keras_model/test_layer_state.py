"""Layer state on N replicas: Dropout's seeds, counters, frozen layers.

The equivalence table has BatchNorm's statistics, seeds that stay, and copies that are equal (tests/equivalence).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import Keeps, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


def test_dropout_draws_differ_between_replicas(make_loop: Any) -> None:
    def net() -> Any:
        return sequential((64,), L.Dropout(0.5), L.Dense(1, use_bias=False, kernel_initializer="ones"))

    loop = make_loop(("mirrored", 4), net, loss=lambda y, y_pred: y_pred[:, 0])
    (batch,) = mk.data.distribute(plain_dataset(np.ones((4, 64), "float32"), np.ones((4, 1)), batch=4), loop.strategy)
    masks = []
    for _ in range(2):  # the gradient of mean(mask * w) is the mask by 4: one example on each replica
        sums = tf.function(lambda: loop.strategy.run(loop.step.compute, args=(batch,)), autograph=False)()
        masks += [m.numpy().ravel() for m in loop.strategy.experimental_local_results(sums["gradients"][0])]
        loop.step.update(loop.strategy, sums)
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, 2.0 / 4}
    assert len({mask.tobytes() for mask in masks}) == 8, "two of 4 replicas x 2 steps drew the same mask"


@pytest.mark.slow
def test_counters_and_flags_of_a_layer_advance_once_per_step(
    make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    """One of them looks like a seed."""

    class Counts(L.Layer):
        def build(self, shape: Any) -> None:
            options = {"dtype": "int32", "initializer": "zeros", "trainable": False}
            self.calls = self.add_weight(shape=(2,), name="seed_like", **options)
            self.seen = self.add_weight(shape=(), dtype="bool", initializer="zeros", trainable=False, name="seen")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.calls.assign_add(1)
                self.seen.assign(True)
            return x

    loop = make_loop(("mirrored", 2), lambda: sequential((4,), Counts(), L.Dense(1)))
    loop.fit(plain_dataset(*numbers, batch=59), epochs=3, verbose=0)  # two steps each, the second with empty shares
    assert_replicas_equal(loop)
    layer = loop.step.model.layers[0]
    assert layer.calls.numpy().tolist() == [6, 6]
    assert bool(layer.seen.numpy())


OF_ROWS = {
    "an outlier was seen": ("bool", lambda seen, x: keras.ops.logical_or(seen, keras.ops.any(x > 9))),
    "batches with an outlier": ("int32", lambda count, x: count + keras.ops.cast(keras.ops.any(x > 9), "int32")),
    "the largest": ("int32", lambda most, x: keras.ops.maximum(most, keras.ops.cast(keras.ops.max(x), "int32"))),
    "rows": ("int64", lambda count, x: count + keras.ops.cast(keras.ops.shape(x)[0], "int64")),
}


@pytest.mark.parametrize(("of_rows", "has_known_size"), zip(OF_ROWS, [True, False] * 2, strict=True))
def test_an_integer_or_flag_that_follows_from_rows_is_refused(
    make_loop: Any, numbers: Any, of_rows: str, has_known_size: bool
) -> None:
    """Also where the first batch has no such row: a mean over the replicas would be rounded to something else later."""
    dtype, after = OF_ROWS[of_rows]

    def fit(*where: Any, **options: Any) -> None:
        loop = make_loop(where, lambda: sequential((4,), Keeps(after, dtype=dtype), L.Dense(1)), **options)
        loop.fit(tf.data.Dataset.from_tensor_slices(numbers).batch(20, drop_remainder=has_known_size), verbose=0)

    with pytest.raises(StepError, match=r"'sequential/keeps/kept'.*mean"):
        fit("mirrored", 2)
    if of_rows == "rows":
        fit("mirrored", 2, unchecked=["state"])
        fit("one_device", 1)


def test_frozen_layers_are_neither_sent_nor_changed(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        model = sequential((4,), L.Dense(7), L.BatchNormalization(), L.Dense(1))
        model.layers[0].trainable = model.layers[1].trainable = False
        return model

    loop = make_loop(("mirrored", 2), net)
    model, strategy = loop.step.model, loop.strategy
    frozen = [w.value.numpy() for layer in model.layers[:2] for w in layer.weights]
    before = model.layers[2].kernel.numpy()
    loop.fit(plain_dataset(*numbers, batch=30), verbose=0)
    for variable, value in zip([w for layer in model.layers[:2] for w in layer.weights], frozen, strict=True):
        np.testing.assert_array_equal(variable.value.numpy(), value)
    assert not np.array_equal(model.layers[2].kernel.numpy(), before)
    (batch,) = mk.data.distribute(plain_dataset(*numbers, batch=60), strategy)
    sums = tf.function(lambda: strategy.run(loop.step.compute, args=(batch,)), autograph=False)()
    shapes = [strategy.experimental_local_results(value)[0].shape for value in tf.nest.flatten(sums)]
    assert sum(shape.num_elements() for shape in shapes) < 7 + 1 + 10, f"more is sent than the last layer: {shapes}"
