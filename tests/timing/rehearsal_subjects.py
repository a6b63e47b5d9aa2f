"""What the tests of `mk.timing.warm_up` warm up: a training written without mirrorkit, and looks at its values."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras

L = keras.layers
BATCH = 8


class Count(L.Layer):
    """Passes its input on, and counts how often it is traced; a trace draws from Python's and NumPy's generators."""

    traces = 0

    def call(self, x: Any) -> Any:
        Count.traces += 1
        random.random()
        np.random.random()
        return x


class Own:
    """What a user writes without mirrorkit: a model, an optimizer, a metric, a generator and one tf.function."""

    def __init__(self, strategy: Any, *, built: bool = True) -> None:
        keras.utils.set_random_seed(3)
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))
        self.strategy = strategy
        central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
        # Keras's layers cannot write a central variable.
        stateful = [] if central else [L.BatchNormalization(), L.Dropout(0.3)]
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((4,)), Count(), L.Dense(5), *stateful, L.Dense(1)])
            self.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
            if built:
                self.optimizer.build(self.model.trainable_variables)
            read, total = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
            self.seen = tf.Variable(0.0, trainable=False, synchronization=read, aggregation=total)  # as of a metric
        self.calls = tf.Variable(0)
        self.train = tf.function(self.train_step)
        self.central = central

    @property
    def restore(self) -> list[Any]:
        return [self.model, self.optimizer, self.seen, self.calls]

    def train_step(self, batch: Any) -> Any:
        self.calls.assign_add(1, read_value=False)  # a variable that is written and never read
        losses = self.strategy.run(self.on_replica, args=(batch,))
        return self.strategy.reduce("sum", losses, axis=None)

    def on_replica(self, batch: Any) -> Any:
        x, y = batch
        x += (
            0.01 * tf.random.get_global_generator().normal(tf.shape(x))
            if self.strategy.num_replicas_in_sync == 1
            else 0
        )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.model(x, training=True) - y) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        if not self.central:  # there it would be one variable for all
            self.seen.assign_add(loss)
        return loss

    def batches(self) -> Any:
        return self.strategy.experimental_distribute_dataset(dataset())

    def fit(self) -> list[float]:
        return [float(self.train(batch)) for batch in self.batches()]

    def values(self) -> list[np.ndarray]:
        """Every replica's copy of every variable."""
        return copies_of([*self.model.variables, *self.optimizer.variables, self.seen, self.calls])


def copies_of(variables: list[Any]) -> list[np.ndarray]:
    found = []
    for variable in variables:
        own = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
        found += [copy.numpy() for copy in getattr(own, "values", (own,))]
    return found


def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * BATCH, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(numbers()).batch(BATCH, drop_remainder=True)


def draws() -> list[Any]:
    """What the random generators give next."""
    return [random.random(), np.random.random(3), tf.random.get_global_generator().normal([3]).numpy()]
