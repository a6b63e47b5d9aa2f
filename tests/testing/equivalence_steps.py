"""A user's own step, written as the documentation says, and the usual ways to get it wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


def points(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [count, 4] and targets [count, 1] that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, (x @ [[1.0], [-2.0], [0.5], [1.5]] + 0.1 * rng.normal(size=(count, 1))).astype("float32")


def net(*middle: Any) -> Any:
    """A smooth net of four inputs and one output."""
    return keras.Sequential([keras.Input((4,)), L.Dense(6, activation="tanh"), *middle, L.Dense(1, name="last")])


class RightStep:
    """Sums over the share, one reduction, the mean over the global batch, the same update everywhere."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def build(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        self.variables = [*self.model.trainable_variables, *self.optimizer.variables]
        self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, [v.value for v in self.model.trainable_variables])
        return {"gradients": gradients, "loss": loss, "examples": tf.cast(tf.shape(y)[0], tf.float32)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        return self._update(sums)

    def _new_values(self, sums: Any, values: Any) -> Any:
        count = len(self.model.trainable_variables)
        gradients = [gradient / sums["examples"] for gradient in sums["gradients"]]
        weights, slots = mk.optim.functional_apply(self.optimizer, values[:count], values[count:], gradients)
        return [*weights, *slots], {"loss": sums["loss"] / sums["examples"]}


class ForgottenReduction(RightStep):
    """Every replica updates its own copies from its own sums."""

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        def on_replica(sums: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            natives = [variable.value for variable in self.variables]
            new, logs = self._new_values(sums, [tf.convert_to_tensor(variable) for variable in natives])
            for variable, value in zip(natives, new, strict=True):
                strategy.experimental_local_results(variable)[tf.get_static_value(replica)].assign(value)
            return logs["loss"]

        return {"loss": strategy.reduce("MEAN", strategy.run(on_replica, args=(sums,)), axis=None)}


class LocalState(RightStep):
    """Lists BatchNorm's statistics, which the layer assigns on each replica."""

    def build(self, strategy: tf.distribute.Strategy) -> None:
        super().build(strategy)
        self.variables = [*self.variables, *self.model.non_trainable_variables]


class Tutorial(RightStep):
    """Calls `optimizer.apply` on each replica, on the gradient of a loss that `loss_of` makes of values [share]."""

    def __init__(self, model: Any, optimizer: Any, loss_of: Any) -> None:
        super().__init__(model, optimizer)
        self.loss_of = loss_of

    def compute(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            values = tf.reduce_sum((self.model(x, training=True) - y) ** 2, 1)
            loss = self.loss_of(values)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables)
        return {"loss": tf.reduce_sum(values), "examples": tf.cast(tf.shape(y)[0], tf.float32)}

    def _new_values(self, sums: Any, values: Any) -> Any:
        return [None] * len(values), {"loss": sums["loss"] / sums["examples"]}
