"""A step of two halves, each of `Step.from_loss`: the GAN of the examples against plain TensorFlow."""

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


class ByHand(EXAMPLE["Gan"]):  # type: ignore[misc]
    """The example's step, updated in plain TensorFlow. Of the codes alone it knows that replicas draw them."""

    replicas = 2
    steps = 0
    half = 0  # which of the two draws

    def generator_loss(self, batch: Any) -> Any:
        self.half = 1
        try:
            return super().generator_loss(batch)
        finally:
            self.half = 0

    def drawn(self, batch: Any) -> Any:
        own = self.seed.state.numpy()
        codes = []
        for replica, rows in enumerate(mk.batching.per_replica_sizes(len(batch[0]), self.replicas)):
            state = tf.constant(own)
            for number in (self.steps, replica, *([-1] if self.half else []), 0):
                state = tf.random.experimental.stateless_fold_in(state, tf.constant(number, tf.int64))
            self.seed.state.assign(state)
            codes.append(keras.random.normal([rows, self.code_size], seed=self.seed))
        self.seed.state.assign(own)
        return self.generator(tf.concat(codes, 0), training=True)


def example(kind: type = EXAMPLE["Gan"]) -> Any:
    """The example's step with small smooth nets."""
    keras.utils.set_random_seed(0)
    norm = L.BatchNormalization(synchronized=True)
    generator = sequential((3,), L.Dense(8, use_bias=False), norm, L.Activation("tanh"), L.Dense(6))
    discriminator = sequential((6,), L.Dense(8, "tanh"), L.Dense(1))
    optimizers = [keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.Adam(0.02, beta_1=0.5)]
    gan = kind(generator, discriminator, optimizers)
    gan.optimizers = optimizers
    return gan


def everything(gan: Any) -> list[np.ndarray]:
    nets = [*gan.generator.variables, *gan.discriminator.variables]
    return numbers_of([*nets, *(variable for optimizer in gan.optimizers for variable in optimizer.variables)])


@pytest.fixture(scope="module")
def images() -> mk.data.Batches:
    """Batches of 20, 20 and 18, shuffled."""
    x = np.random.default_rng(0).normal(size=(58, 6)).astype("float32")
    return mk.data.batches(mk.data.arrays(x), global_batch_size=20, shuffle=True, seed=1)


class Watch(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
    """An ordinary callback: it looks at the nets after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[np.ndarray]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(self.model.get_weights())


@pytest.mark.slow  # fast: the halves below, draws of replicas in test_from_loss.py, a resume in test_custom_passes.py
def test_the_example_is_plain_tensorflow_also_when_it_goes_on(
    strategy_of: Any, images: Any, tmp_path: Any, assert_replicas_equal: Any
) -> None:
    """Two epochs, and two more by another loop, with callbacks: the weights of four epochs by hand on whole batches."""
    by_hand = example(ByHand)
    where = ("mirrored", by_hand.replicas)
    logs = []
    for epoch in range(4):
        sizes = [len(batch[0]) for batch in images.dataset(epoch)]
        losses = []
        for batch in images.dataset(epoch):
            losses.append(train_by_hand(by_hand, batch))
            by_hand.steps += 1
        logs.append(np.average(losses, axis=0, weights=sizes))

    saver = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    for epochs in (2, 4):
        watch = Watch()
        with strategy_of(*where).scope():
            gan = example()
        loop = mk.train.Loop(strategy_of(*where), gan, steps_per_call=2)
        callbacks = [mk.train.Checkpoints(tmp_path / "run"), saver, watch]
        history = loop.fit(images, epochs=epochs, verbose=0, callbacks=callbacks).history
        assert len(watch.seen) == 2
    np.testing.assert_allclose(np.transpose([history["discriminator"], history["generator"]]), logs, rtol=1e-5)
    # Measured: 3.0e-7. Plain TensorFlow parts from itself by 1.7e-6 where the rows of its batches are in reverse.
    assert largest_difference(everything(gan), everything(by_hand)) < 5e-6
    assert_replicas_equal(loop)
    assert [gan.optimizers[i].iterations.numpy() for i in (0, 1)] == [12, 12]

    watch.model.load_weights(tmp_path / "3.weights.h5")
    assert largest_difference(watch.model.get_weights(), watch.seen[0]) == 0
    assert largest_difference(watch.model.get_weights(), watch.seen[1]) > 1e-3


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
