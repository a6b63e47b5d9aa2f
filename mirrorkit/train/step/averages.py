"""Exponential moving averages of the weights, which often generalise better than the last weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable, Variable
from mirrorkit.optim import Joined
from mirrorkit.train.keras_model.layer_state import LayerState
from mirrorkit.train.step.facts import Changing
from mirrorkit.variables import copies


class Averages:
    """One average for each weight, by the formula of Keras's `use_ema`; make it in the strategy's scope.

    The first update sets an average to the weight, each later one to `decay * average + (1 - decay) * weight`. Layer
    state of floats, such as the statistics of BatchNormalization, has averages too: that of the last weights would not
    fit the averages of the weights.
    """

    def __init__(self, decay: float, weights: Sequence[KerasVariable], state: LayerState) -> None:
        self._decay = decay
        self._weights = [*weights, *(state.variables[index] for index in state.averaged)]
        self.are_in_place = False
        with keras.name_scope("average"):
            self.variables = [_beside(weight) for weight in self._weights]
        # by the index of the state
        self.of_state = dict(zip(state.averaged, self.variables[len(weights) :], strict=True))

    def new_values(
        self,
        joined: Joined,
        old: Changing,
        weights: Sequence[tf.Tensor | None],
        state: Sequence[tf.Tensor | None],
        iterations: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Return the averages after an update.

        Args:
            joined: how small weights are joined.
            old: all values before the update.
            weights, state: the weights and the layer state after it; None for what it leaves as it is. The average of
                such a state, perhaps -inf, is the state itself.
            iterations: the number of updates before.
        """
        mean = functools.partial(self._mean, tf.where(iterations == 0, 0.0, self._decay))
        after = [before if new is None else new for before, new in zip(old.weights, weights, strict=True)]
        of_weights, of_state = old.averages[: len(after)], old.averages[len(after) :]
        averages = joined.split([*map(mean, joined.join(of_weights), joined.join(after))])
        for average, index in zip(of_state, self.of_state, strict=True):
            new = state[index]
            averages.append(old.state[index] if new is None else mean(average, new))
        return averages

    @staticmethod
    def _mean(decay: tf.Tensor, average: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return tf.cast(decay, value.dtype) * average + tf.cast(1 - decay, value.dtype) * value

    @contextmanager
    def exchanged(self, but_for: Sequence[Variable] = ()) -> Iterator[None]:
        """Exchange weights and averages within the block on every replica of this worker, but for some averages."""
        left = set(map(id, but_for))
        pairs = [pair for pair in zip(self._weights, self.variables, strict=True) if id(pair[1]) not in left]
        self._exchange(pairs)
        try:
            yield
        finally:
            self._exchange(pairs)

    def _exchange(self, pairs: Sequence[tuple[KerasVariable, KerasVariable]]) -> None:
        for pair in pairs:
            for weight, average in zip(*map(copies, pair), strict=True):
                value = tf.identity(weight)
                weight.assign(average)
                average.assign(value)
        self.are_in_place = not self.are_in_place


def _beside(weight: KerasVariable) -> KerasVariable:
    """Create a variable with the weight's value on its device."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(weight.value):
        return keras.Variable(
            weight.value.numpy(), dtype=weight.dtype, trainable=False, name=weight.path.replace("/", "_")
        )
