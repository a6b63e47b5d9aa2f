"""What becomes of gradients: summed over replicas, clipped once, dense, and left out where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS
from training_helpers import fit_both, keras_twin, largest_difference, plain_dataset, sequential

from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def test_regularisers_and_added_losses_count_once(make_loop: Any, numbers: Any) -> None:
    class Penalty(L.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * keras.ops.mean(keras.ops.square(x)))
            return x

    def net() -> Any:
        l2 = keras.regularizers.L2(0.2)
        of_activity = l2 if KERAS >= (3, 14) else None  # before, Keras added a sum over the rows, which is refused
        dense = L.Dense(3, kernel_regularizer=l2, activity_regularizer=of_activity)
        return sequential((4,), dense, Penalty(), L.Dense(1))

    data = plain_dataset(*numbers, batch=29)  # 15, 14
    fit_both(make_loop, net, data, fit={"validation_data": data}, rtol=1e-5)  # measured: 2.4e-7


def test_embeddings_get_dense_gradients(make_loop: Any) -> None:
    """Keras updates the rows of an embedding that a batch lacks differently for sparse gradients; N replicas cannot."""

    def net() -> Any:
        return sequential((3,), L.Embedding(20, 4), L.Flatten(), L.Dense(1))

    rng = np.random.default_rng(0)
    tokens, y = rng.integers(0, 20, (12, 3)), rng.normal(size=(12, 1)).astype("float32")
    loop = make_loop(("mirrored", 2), net, lambda: keras.optimizers.Adam(0.05))
    model, optimizer = keras_twin(net, loop), keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    data = plain_dataset(tokens, y, batch=4)
    for x, target in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - target) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients])
    loop.fit(data, verbose=0)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 4e-9


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_that_the_loss_does_not_reach_stays(make_loop: Any, numbers: Any) -> None:
    class HalfUsed(L.Layer):
        def build(self, shape: Any) -> None:
            self.used = self.add_weight(shape=(4, 1), name="used")
            self.unused = self.add_weight(shape=(5,), name="unused", initializer="ones")

        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, self.used)

    def net() -> Any:
        return sequential((4,), HalfUsed(), L.Dense(1))

    data = plain_dataset(*numbers, batch=30)
    _, loop, _ = fit_both(make_loop, net, data, optimizer=lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1))
    np.testing.assert_array_equal(loop.step.model.layers[0].unused.numpy(), np.ones(5))


def test_a_compiled_computation_gives_the_same_result(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        return sequential((4,), L.BatchNormalization(), L.Dense(1))

    results = []
    for jit_compile in (False, True):
        loop = make_loop(("mirrored", 2), net, metrics=["mae"], jit_compile=jit_compile)
        history = loop.fit(plain_dataset(*numbers, batch=20), verbose=0).history
        results.append([*loop.step.model.get_weights(), *history.values()])
    assert largest_difference(*results) < 1e-5  # measured: 2.5e-7
