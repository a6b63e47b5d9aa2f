"""Exponential moving averages of the weights, which often generalise better than the last weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.layer_state import LayerState
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
        self, averages: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], iterations: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the averages after an update that made `weights`; `iterations` counts the updates before it."""
        decay = tf.where(iterations == 0, 0.0, self._decay)
        return [
            tf.cast(decay, weight.dtype) * average + tf.cast(1 - decay, weight.dtype) * weight
            for average, weight in zip(averages, weights, strict=True)
        ]

    def new_state_values(
        self,
        averages: Sequence[tf.Tensor],
        old: Sequence[tf.Tensor],
        new: Sequence[tf.Tensor | None],
        iterations: tf.Tensor,
    ) -> Iterator[tf.Tensor]:
        """Yield the averages of layer state after an update; what it leaves as it is, perhaps -inf, is its average."""
        for average, index in zip(averages, self.of_state, strict=True):
            after = new[index]
            yield old[index] if after is None else self.new_values([average], [after], iterations)[0]

    @contextmanager
    def in_place(self, strategy: tf.distribute.Strategy) -> Iterator[None]:
        """Let the weights be the averages within the block, on every replica of this worker."""
        if self.are_in_place:
            raise StepError("The model's weights are the averages already. Leave the outer `with step.averaged():`.")
        self._swap(strategy)
        self.are_in_place = True
        try:
            yield
        finally:
            self._swap(strategy)
            self.are_in_place = False

    @contextmanager
    def out_of_place(self, strategy: tf.distribute.Strategy) -> Iterator[None]:
        """Let the weights be themselves within the block, where they are the averages."""
        self._swap(strategy)
        try:
            yield
        finally:
            self._swap(strategy)

    def _swap(self, strategy: tf.distribute.Strategy) -> None:
        for pair in zip(self._weights, self.variables, strict=True):
            for weight, average in zip(*map(copies, pair), strict=True):
                value = tf.identity(weight)
                weight.assign(average)
                average.assign(value)


def no_averages(step: str) -> StepError:
    """Return the error that a step has none."""
    return StepError(f"{step} keeps no averages of the weights. Give it a decay: Step(..., ema=0.999).")


def _beside(weight: KerasVariable) -> KerasVariable:
    """Create a variable with the weight's value on its device."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(weight.value):
        return keras.Variable(
            weight.value.numpy(), dtype=weight.dtype, trainable=False, name=weight.path.replace("/", "_")
        )
