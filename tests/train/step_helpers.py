"""Steps one at a time, with a look between them; batches of any size through one trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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


def _update(step: Any, group: Any) -> Any:
    return step.train([HostBatch(batch) for batch in group])


def _any_size(value: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def train(loop: Any, batches: Sequence[Any]) -> list[Any]:
    """Run one update for each global batch; returns the logs of each."""
    return updates(loop, [[batch] for batch in batches])


def train_by_hand(model: Any, optimizer: Any, batches: Sequence[Any], loss: Any = None) -> list[float]:
    """The same in plain TensorFlow on whole batches, with Keras's optimizer; returns the losses."""
    loss = loss or (lambda y, y_pred: tf.reduce_mean((y_pred - y) ** 2))
    optimizer.build(model.trainable_variables)
    losses = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True)) + sum(model.losses)
        losses.append(float(value))
        optimizer.apply([tf.convert_to_tensor(g) for g in tape.gradient(value, model.trainable_variables)])
    return losses


def numbers_of(variables: Sequence[Any]) -> list[np.ndarray]:
    """The values of Keras variables."""
    return [variable.value.numpy() for variable in variables]


def with_policy(policy: str) -> Any:
    """A context in which layers are made with this dtype policy."""
    return _Policy(policy)


class _Policy:
    def __init__(self, policy: str) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        self._before = keras.config.dtype_policy().name
        keras.config.set_dtype_policy(self._policy)

    def __exit__(self, *_: Any) -> None:
        keras.config.set_dtype_policy(self._before)
