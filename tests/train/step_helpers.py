"""Steps one at a time, with a look between them; batches of any size through one trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.step.global_batch import HostBatch


def cut(*parts: Any, sizes: Sequence[int]) -> list[Any]:
    """Consecutive batches of these sizes."""
    ends = np.cumsum(sizes)
    return [tuple(part[end - size : end] for part in parts) for end, size in zip(ends, sizes, strict=True)]


def with_far_ones(numbers: Any, *, batch: int, far: tuple[int, ...]) -> list[Any]:
    """Six batches; in those of `far` the last example, which is on the last replica, is far off."""
    x, y = numbers[0], numbers[1].copy()
    for index in far:
        y[(index + 1) * batch - 1] = 1e4
    return cut(x, y, sizes=[batch] * 6)


def updates(loop: Any, groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Run one update for each group of global batches; returns the logs of each.

    Several batches are added up one after the other.
    """
    step = loop.step.for_loop(loop.strategy)
    step.prepare(groups[0][0])
    traced = vars(loop).setdefault("traced_by_the_tests", {})  # by number of batches
    logs = []
    for group in groups:
        if len(group) not in traced:
            spec = tf.nest.map_structure(_any_size, tuple(group))
            traced[len(group)] = tf.function(_update, autograph=False).get_concrete_function(step, spec)
        totals = traced[len(group)](*map(tf.convert_to_tensor, tf.nest.flatten(tuple(group))))
        logs.append({name: np.asarray(value) for name, value in step.logs(totals).items()})
    return logs


def traced_update(loop: Any, *spec: tf.TensorSpec, batches: int = 1) -> Any:
    """The trace of an update on so many batches of this form, of which nothing is run."""
    step = loop.step.for_loop(loop.strategy)
    step.prepare(spec)
    train = tf.function(lambda *batch: step.train([HostBatch(batch)] * batches), autograph=False)
    return train.get_concrete_function(*spec)


def _update(step: Any, group: Any) -> Any:
    return step.train([HostBatch(batch) for batch in group])


def _any_size(value: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def train(loop: Any, batches: Sequence[Any]) -> list[Any]:
    """Run one update for each global batch; returns the logs of each."""
    return updates(loop, [[batch] for batch in batches])


def train_by_hand(model: Any, optimizer: Any, batches: Sequence[Any]) -> list[float]:
    """The same in plain TensorFlow on whole batches, with Keras's optimizer; returns the losses."""
    optimizer.build(model.trainable_variables)
    losses = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x, training=True) - y) ** 2) + sum(model.losses)
        losses.append(float(value))
        optimizer.apply([tf.convert_to_tensor(g) for g in tape.gradient(value, model.trainable_variables)])
    return losses


def numbers_of(variables: Sequence[Any]) -> list[np.ndarray]:
    """The values of Keras variables."""
    return [variable.value.numpy() for variable in variables]


@contextmanager
def with_policy(policy: str) -> Iterator[None]:
    """Make layers with this dtype policy within the block."""
    before = keras.config.dtype_policy().name
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@dataclass(frozen=True)
class Noise:
    """A transform without a state: what it adds follows from seed, weight and step."""

    seed: int = 0

    def init(self, variables: Any) -> Any:
        return ()

    def update(self, gradients: Any, state: Any, step: Any) -> Any:
        return [
            g + 0.1 * tf.random.stateless_normal(g.shape, [self.seed + i, step]) for i, g in enumerate(gradients)
        ], state


class RunningMean:
    """One with a state: the mean of the gradients so far, and the last step."""

    def init(self, variables: Any) -> Any:
        return {"step": -1, "mean": [np.zeros(variable.shape, "float32") for variable in variables]}

    def update(self, gradients: Any, state: Any, step: Any) -> Any:
        pairs = list(zip(state["mean"], gradients, strict=True))
        assert all(mean.shape == gradient.shape for mean, gradient in pairs)  # one by one, as the model has them
        means = [0.5 * mean + 0.5 * gradient for mean, gradient in pairs]
        return means, {"step": step, "mean": means}


class Line:
    """A step of the user's own: least squares, with a test and a prediction."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(0)
        self.net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.1)

    @property
    def variables(self) -> list[Any]:
        return [*self.net.trainable_variables, *self.optimizer.variables]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            self.optimizer.build(self.net.trainable_variables)
        self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.net(x) - y) ** 2)
        weights = [variable.value for variable in self.net.trainable_variables]
        return {"gradients": tape.gradient(loss, weights), "loss": loss, "examples": tf.cast(tf.shape(x)[0], "float32")}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        return self._update(sums)

    def test(self, batch: Any) -> dict[str, tf.Tensor]:
        x, y = batch
        error = self.net(x) - y
        return {"loss": (error**2)[:, 0], "mae": tf.abs(error)[:, 0]}

    def predict(self, batch: Any) -> Any:
        return {"y": self.net(batch[0])}

    def _new_values(self, sums: Any, values: Any) -> Any:
        count = len(self.net.trainable_variables)
        gradients = [gradient / sums["examples"] for gradient in sums["gradients"]]
        new = mk.optim.functional_apply(self.optimizer, values[:count], values[count:], gradients)
        return [*new[0], *new[1]], {"loss": sums["loss"] / sums["examples"]}


class ByTrain(Line):
    """Trains by a method of its own, as one of several updates does."""

    def train(self, strategy: tf.distribute.Strategy, batch: Any) -> Any:
        return self.update(strategy, strategy.run(self.compute, args=(batch,)))
