"""What a step would silently train as something else: the refusal that each script meets, and on how many replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from entries import BATCH, TWO, WORKERS, Fit, Rows, Script, Trained, batched, dense, net, recipe, split
from nets_dense import regression
from nets_own_steps import embedding_net
from nets_sequences import LENGTH, series

import mirrorkit as mk
from mirrorkit._keras import keras

L, K, _o = keras.layers, keras.ops, keras.optimizers
SEVERAL = (TWO, WORKERS)


def correlation(y: Any, y_pred: Any) -> Any:
    """One number for the whole batch."""
    y, y_pred = y - K.mean(y), y_pred - K.mean(y_pred)
    return 1 - K.sum(y * y_pred) / K.sqrt(K.sum(y**2) * K.sum(y_pred**2) + 1e-6)


class Watched(L.Layer):
    """A layer that logs its own activity."""

    def __init__(self) -> None:
        super().__init__()
        self.activity = keras.metrics.Mean(name="activity")

    def call(self, x: Any) -> Any:
        self.activity.update_state(K.mean(K.abs(x)))
        return x


class Clipped(L.Layer):
    """Clips the gradient that passes through it: that of a mean over the batch, where a step has a sum."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def clipped(x: Any) -> Any:
            return tf.identity(x), lambda upstream: tf.clip_by_value(upstream, -1e-3, 1e-3)

        return clipped(x)


def stateful() -> Any:
    inputs = keras.Input((LENGTH, 1), batch_size=BATCH)
    return keras.Model(inputs, L.Dense(1)(L.LSTM(4, stateful=True)(inputs)))


def _by_hand(loss_fn: Callable[..., Any]) -> Callable[[Rows, Rows], Trained]:
    """A training loop with this loss."""

    def before(train: Rows, test: Rows) -> Trained:
        model, optimizer = embedding_net(), _o.SGD(0.1)
        optimizer.build(model.trainable_variables)
        total = 0.0
        for batch in batched(train):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_fn(model, batch))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            total += float(loss) * len(batch[0])
        return Trained([model], [optimizer], {"loss": [total / len(train[0])]}, model(test[0]))

    return before


def _from_loss(loss_fn: Callable[..., Any]) -> Callable[[Any, Rows, Rows], Trained]:
    def after(strategy: Any, train: Rows, test: Rows) -> Trained:
        with strategy.scope():
            model, optimizer = embedding_net(), _o.SGD(0.1)
        step = mk.train.Step.from_loss(model, optimizer, lambda batch: loss_fn(model, batch))
        loop = mk.train.Loop(strategy, step)
        fitted = loop.fit(recipe(train), epochs=1, verbose=0)
        return Trained([model], [optimizer], fitted.history, loop.predict(recipe(test)))

    return after


def hardest_of_batch(model: Any, batch: Any) -> Any:
    """The nearest other example of the batch is the negative."""
    points = model(batch[0])
    distances = tf.reduce_sum((points[:, None] - points[None]) ** 2, axis=2)
    return tf.nn.relu(1 - tf.reduce_min(distances + 9 * tf.eye(tf.shape(points)[0]), axis=1))


_small = net(dense(6, "tanh"), dense(1))
ENTRIES = [
    Fit(
        name="SpectralNormalization",
        data=split(regression),
        model=net(lambda: L.SpectralNormalization(L.Dense(6, "tanh")), dense(1)),
        with_variables=True,
    ),
    Fit(
        name="a metric updated in call",
        data=split(regression),
        model=net(dense(6, "tanh"), Watched, dense(1)),
    ),
    Fit(
        name="a loss that is one number for the batch (correlation)",
        data=split(regression),
        model=_small,
        loss=lambda: correlation,
        refused="The loss (correlation) of a batch is not that of its parts",
        refused_on=SEVERAL,
    ),
    Fit(
        name="a gradient clipped within the net",
        data=split(regression),
        model=net(dense(6, "tanh"), Clipped, dense(1)),
    ),
    Fit(
        name="stateful LSTM",
        data=lambda: tuple((x[:32], y[:32]) for x, y in split(series)()),
        model=lambda: stateful(),
        optimizer=lambda: _o.Adam(0.01),
        refused="The layer 'lstm' has stateful=True",
    ),
    Script(
        name="Step.from_loss: the hardest negative of the batch",
        data=split(regression),
        before=_by_hand(hardest_of_batch),
        after=_from_loss(hardest_of_batch),
        refused="for an example depends on the other examples of its batch",
        refused_on=SEVERAL,
    ),
]
