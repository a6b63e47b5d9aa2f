"""A step of two halves, each of `Step.from_loss`: the GAN of the examples against plain TensorFlow.

Its draws: test_draws.py; checkpoints and callbacks of several updates: test_custom_passes.py.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import cut, numbers_of
from training_helpers import THREE, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "gan.py"))


def train_by_hand(gan: Any, batch: Any) -> list[float]:
    """Both updates, one after the other, in plain TensorFlow on a whole batch; returns the losses."""
    first, second = gan.optimizers
    return [
        _update(gan.discriminator, first, gan.discriminator_loss, batch),
        _update(gan.generator, second, gan.generator_loss, batch),
    ]


def _update(net: Any, optimizer: Any, loss_fn: Callable[[Any], Any], batch: Any) -> float:
    optimizer.build(net.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_mean(loss_fn(batch)), *net.losses])
    optimizer.apply(tape.gradient(loss, [variable.value for variable in net.trainable_variables]))
    return float(loss)


def everything(gan: Any) -> list[np.ndarray]:
    nets = [*gan.generator.variables, *gan.discriminator.variables]
    return numbers_of([*nets, *(variable for optimizer in gan.optimizers for variable in optimizer.variables)])


class OfOneShare(EXAMPLE["Gan"]):  # type: ignore[misc]
    """The codes come with the batch, so that batches may be as small as one example."""

    def drawn(self, batch: Any) -> Any:
        return self.generator(batch[1], training=False)


def regularized() -> Any:
    """Nets whose regularizers count in the half that trains them, and BatchNormalization that is to stay as it is."""
    keras.utils.set_random_seed(0)
    squares = {"kernel_regularizer": "l2"}
    generator = sequential((2,), L.Dense(5, "tanh", **squares), L.BatchNormalization(), L.Dense(6))
    discriminator = sequential((6,), L.Dense(5, "tanh", **squares), L.Dense(1))
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)]
    gan = OfOneShare(generator, discriminator, optimizers)
    gan.optimizers = optimizers
    return gan


@pytest.mark.slow
def test_each_half_leaves_the_others_net(strategy_of: Any, assert_replicas_equal: Any) -> None:
    """In the last batch all replicas but the first have nothing."""
    x = np.random.default_rng(0).normal(size=(21, 6)).astype("float32")
    codes = x[:, :2].copy()
    by_hand = regularized()
    with strategy_of(*THREE).scope():
        gan = regularized()
    loop = mk.train.Loop(strategy_of(*THREE), gan, steps_per_call=3)
    history = loop.fit(plain_dataset(x, codes, batch=20), epochs=2, verbose=0).history
    for epoch in range(2):
        losses = [train_by_hand(by_hand, batch) for batch in cut(x, codes, sizes=[20, 1])]
        found = [history[name][epoch] for name in ("discriminator", "generator")]
        assert found == pytest.approx(np.average(losses, axis=0, weights=[20, 1]), rel=1e-5)
    assert largest_difference(everything(gan), everything(by_hand)) < 1e-6
    assert [len(optimizer.variables) for optimizer in gan.optimizers] == [2 + 2 * 4, 2 + 2 * 6]
    assert_replicas_equal(loop)
