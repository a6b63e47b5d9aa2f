"""Custom-gradient functions that read weights: what Keras's fit makes of them, N replicas do too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import with_policy
from training_helpers import largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


class Inner(L.Layer):
    """A dense layer with dropout and a regularizer."""

    def __init__(self, *, rate: float = 0.0) -> None:
        super().__init__()
        self.dense = L.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))
        self.dropout, self.norm = L.Dropout(rate, seed=3), L.LayerNormalization()

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.norm.build((None, 6))

    def compute(self, x: Any) -> Any:
        return self.dropout(self.dense(x), training=True)

    def call(self, x: Any) -> Any:
        return self.norm(self.compute(x))


class Recomputed(Inner):
    def call(self, x: Any) -> Any:
        return self.norm(tf.recompute_grad(self.compute)(x))


class ByHand(Inner):
    """Negates the gradient of its inputs, and doubles that of its weights."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def compute(x: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor, variables: Any = None) -> Any:
                assert [tuple(v.shape) for v in variables] == [(6,), (4, 6)]  # sorted by name, as in TensorFlow
                of_weights = [2 * tf.reduce_sum(upstream, 0), 2 * tf.transpose(x) @ upstream]
                return -upstream @ tf.transpose(variables[1]), of_weights

            return x @ self.dense.kernel + self.dense.bias, gradient

        return self.norm(compute(x))


class Scaled(Inner):
    def build(self, shape: Any) -> None:
        super().build(shape)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return self.norm(self.scale * self.compute(x))


class Nested(Scaled):
    """A function of its own within another, both of which read weights, in a `tf.function`."""

    def call(self, x: Any) -> Any:
        outer = tf.recompute_grad(lambda x: self.scale * tf.recompute_grad(self.compute)(x))
        return self.norm(tf.function(outer, autograph=False)(x))


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)).astype("float32"), RNG.integers(0, 3, 24)


def _net(block: Any, **options: Any) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return sequential((4,), block(**options), L.Dense(3)), keras.optimizers.SGD(0.1), loss


def by_keras(block: Any) -> list[np.ndarray]:
    """Weights after Keras's `fit`."""
    model, optimizer, loss = _net(block)
    model.compile(optimizer, loss)
    model.fit(X, Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    return list(model.get_weights())


def trained(strategy: Any, block: Any, **options: Any) -> list[np.ndarray]:
    """Weights after a loop's."""
    with strategy.scope():
        model, optimizer, loss = _net(block, **options)
    data = mk.data.batches(mk.data.arrays(X, Y), global_batch_size=12)
    mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss)).fit(data, epochs=2, verbose=0)
    return list(model.get_weights())


class Own(Inner):
    """Is given a function of the layer and its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = tf.custom_gradient(lambda x: function(self, x))

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], 6)

    def call(self, x: Any) -> Any:
        return self.norm(self.function(x))


class TwoLayers(L.Layer):
    """Of two layers with weights of the same shapes; the gradients are by hand, in TensorFlow's order of variables."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = L.Dense(4, name="a"), L.Dense(4, name="b")

    def build(self, shape: Any) -> None:
        for layer in (self.first, self.second):
            with keras.name_scope(layer.name, caller=layer):
                layer.build(shape)

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def compute(x: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor, variables: Any = None) -> Any:
                size = [tf.reduce_sum(upstream) * (i + 1) for i in range(4)]  # another one for each
                return upstream, [s * tf.ones_like(v) for s, v in zip(size, variables, strict=True)]

            return self.first(x) + self.second(x), gradient

        return compute(x)


class OnCondition(Inner):
    def call(self, x: Any) -> Any:
        return self.norm(
            tf.cond(tf.reduce_sum(x) < 1e6, lambda: tf.recompute_grad(self.compute)(x), lambda: 0 * x @ tf.ones([4, 6]))
        )


SLOW = [pytest.param(block, marks=pytest.mark.slow) for block in (ByHand, TwoLayers)]


@pytest.mark.parametrize("block", [Nested, *SLOW])
def test_weights_of_replicas_move_as_under_fit(strategy_of: Any, block: type[L.Layer]) -> None:
    assert largest_difference(by_keras(block), trained(strategy_of("mirrored", 2), block)) < 1e-6


@pytest.fixture(scope="module")
def plain(strategy_of: Any) -> list[np.ndarray]:
    """What a block that computes nothing again is trained to."""
    return trained(strategy_of("one_device", 1), Inner)


@pytest.mark.slow
@pytest.mark.parametrize("block", [OnCondition, lambda: mk.parallel.Recompute(Recomputed())], ids=["branch", "layer"])
def test_in_a_branch_and_within_a_layer_that_is_computed_again(strategy_of: Any, block: Any, plain: Any) -> None:
    assert largest_difference(plain, trained(strategy_of("one_device", 1), block)) < 1e-6


@pytest.mark.slow
def test_losses_that_count_differently(strategy_of: Any) -> None:
    """Each has a backward pass of its own, in which the units are dropped that were dropped before."""
    y, weight = X[:, :1] ** 2, (np.arange(24) % 3 > 0).astype("float32")
    arrays = tf.data.Dataset.from_tensor_slices((X, {"a": y, "b": 2 * y}, {"a": weight, "b": 1 - weight})).batch(12)

    def run(block: type[Inner]) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        strategy = strategy_of("one_device", 1)
        with strategy.scope():
            inputs = keras.Input((4,))
            h = block(rate=0.5)(inputs)
            model = keras.Model(inputs, {name: L.Dense(1, name=name)(h) for name in "ab"})
            optimizer = keras.optimizers.SGD(0.1)
        loss = {name: keras.losses.MeanSquaredError("mean_with_sample_weight") for name in "ab"}
        mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss)).fit(arrays, verbose=0)
        return model.get_weights()

    assert largest_difference(run(Inner), run(Recomputed)) < 1e-6


@pytest.mark.slow
def test_in_mixed_precision(strategy_of: Any) -> None:
    """A gradient by hand is of bfloat16, and the weight of float32; Keras's fit cannot add it to a regularizer's."""
    one = strategy_of("one_device", 1)
    exact = trained(one, ByHand)
    with with_policy("mixed_bfloat16"):
        by_hand = trained(one, ByHand)
    assert largest_difference(exact, by_hand) < 2**-8 * 2  # bfloat16 has 8 bits, and weights are below 2


def test_a_model_that_the_step_was_not_given_is_refused(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        own, other = sequential((4,), L.Dense(2)), sequential((2,), L.Dense(1))
        optimizer = keras.optimizers.SGD(0.1)
    step = mk.train.Step.from_loss(own, optimizer, lambda x: tf.reduce_sum(tf.recompute_grad(other)(own(x)), -1))
    with pytest.raises(StepError, match="not among its own"):
        mk.train.Loop(strategy, step).fit(tf.data.Dataset.from_tensors(tf.ones([8, 4])), verbose=0)


def _without_weights(layer: Own, x: tf.Tensor) -> Any:
    return layer.compute(x), lambda upstream: upstream @ tf.ones([6, 4])


def _unwatched(layer: Own, x: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor, variables: Any = None) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer.compute(x)
        of_x, *of_weights = tape.gradient(y, [x, *variables], upstream)
        return of_x, of_weights

    return layer.compute(x), gradient


def _too_few(layer: Own, x: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor, variables: Any = None) -> Any:
        return upstream @ tf.ones([6, 4]), [tf.zeros_like(variables[0])]

    return layer.compute(x), gradient


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_too_few, "reads 2 weights.*returns 1 gradients"),
        (_without_weights, "bias.*has no argument"),
        (_unwatched, r"bias.*tape\.watch\(variables\)"),
    ],
)
def test_a_gradient_that_says_nothing_of_the_weights_is_refused(strategy_of: Any, function: Any, said: str) -> None:
    with pytest.raises(StepError, match=said):
        trained(strategy_of("one_device", 1), Own, function=function)
