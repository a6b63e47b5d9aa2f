"""Transforms of the reduced gradient, one after the other: clipping, and what `Step(transforms=[...])` is given.

They are pure functions of tensors, so each replica calls them on the same numbers and comes to the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined
from mirrorkit.train.reduce.tracing import TraceOnce, require_only_read


class Transform(Protocol):
    """What changes the gradient of the global batch before the optimizer is given it: `Step(transforms=[...])`.

    ```python
    class Centralized:
        def init(self, variables):
            return ()  # no state

        def update(self, gradients, state, step):
            axes = [list(range(len(g.shape) - 1)) if len(g.shape) > 1 else [] for g in gradients]
            return [g - tf.reduce_mean(g, a, keepdims=True) if a else g for g, a in zip(gradients, axes)], state


    step = mk.train.Step(model, optimizer, loss=loss, transforms=[Centralized()])
    ```

    Any object with these two methods is one. It is called once for each update, on the mean over all replicas, behind
    `clip_norm` and `clip_value`. Its state is kept in variables: checkpoints hold it, and an update that the loss scale
    skips leaves it as it was. The form is that of optax (https://optax.readthedocs.io/en/latest/api/transformations.html).
    """

    def init(self, variables: Sequence[KerasVariable]) -> Nest:
        """Return the state before the first update: any nest of tensors, arrays and numbers; `()` for none.

        Args:
            variables: the trained weights, in the order of the model.
        """

    def update(self, gradients: Sequence[tf.Tensor], state: Nest, step: tf.Tensor) -> tuple[Sequence[tf.Tensor], Nest]:
        """Return other gradients and the next state, with the same shapes and dtypes.

        It is a pure function of tensors. It may read a variable that a callback sets, and no weight of the model.
        Random numbers are drawn by `tf.random.stateless_normal(shape, [seed, step])` and the like.

        Args:
            gradients: one for each weight, of its shape and dtype; zeros for a weight on which the loss does not
                depend, which is not updated.
            state: what the last update returned.
            step: how many steps were made before, an int32 scalar; those that the loss scale skipped count.
        """


@dataclass(frozen=True)
class Clip:
    """Bounds for the mean gradient; at most one of the two is set."""

    norm: float | None  # of all gradients together
    value: float | None  # of each number

    def init(self, variables: Sequence[KerasVariable]) -> Nest:
        """It has no state."""
        return ()

    def update(self, gradients: Sequence[Any], state: Nest, step: tf.Tensor) -> tuple[Sequence[Any], Nest]:
        """Return the gradients within the bounds; they may arrive joined into fewer tensors, and some may be None."""
        if self.norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.norm)
        if self.value is not None:
            gradients = [None if g is None else tf.clip_by_value(g, -self.value, self.value) for g in gradients]
        return gradients, state


class Transforms:
    """A list of transforms for some weights, and the `variables` of their states, created in the strategy's scope."""

    def __init__(self, transforms: Sequence[Transform], weights: Sequence[KerasVariable]) -> None:
        self._transforms, self._weights = transforms, weights
        self._states = [_created(transform, weights) for transform in transforms]
        self.variables: list[KerasVariable] = tf.nest.flatten(self._states)

    def __call__(
        self, gradients: Sequence[Any], values: Sequence[tf.Tensor], step: tf.Tensor, joined: Joined
    ) -> tuple[Sequence[Any], list[tf.Tensor]]:
        """Return the gradients that the optimizer is given, and the new values of `variables`.

        Args:
            gradients: the means over the global batch; None for a weight that has none.
            values: of `variables`.
            step: see `Transform`.
            joined: how the gradients are joined.
        """
        states = tf.nest.pack_sequence_as(self._states, values)
        after = []
        for transform, state in zip(self._transforms, states, strict=True):
            if isinstance(transform, Clip):  # the norm of joined gradients has other bits
                gradients, state = transform.update(gradients, state, step)
            else:
                given = joined.split(gradients)
                known = [
                    tf.zeros(weight.shape, weight.dtype) if gradient is None else gradient
                    for weight, gradient in zip(self._weights, given, strict=True)
                ]
                new, state = transform.update(known, state, step)
                gradients = joined.join([None if old is None else one for old, one in zip(given, new, strict=True)])
            after.append(state)
        return gradients, tf.nest.flatten(after)


def _created(transform: Transform, weights: Sequence[KerasVariable]) -> Nest:
    """Create the variables of a state; refuse an object that is no transform."""
    try:
        with keras.name_scope(type(transform).__name__):
            state = tf.nest.map_structure(_variable, transform.init(weights))
        if not isinstance(transform, Clip):
            given = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), (list(weights), state))
            trace = TraceOnce(transform.update).trace(*given, tf.TensorSpec([], tf.int32))
            require_only_read(trace.variables, weights)
            wanted, found = _leaves(given), _leaves(trace.structured_outputs)
            for place in wanted | found:
                if wanted.get(place) != found.get(place):
                    raise TypeError(
                        f"At {place} of (gradients, state), update returned {found.get(place)} in place of "
                        f"{wanted.get(place)}."
                    )
    except Exception as error:  # whatever a user's methods may raise
        raise StepError(
            f"{type(transform).__name__} cannot be one of the transforms: {error} A transform is an object with two "
            "methods. init(variables) returns its state, a nest of numbers: tensors, arrays or Python's; () for none. "
            "update(gradients, state, step) is a pure function of tensors, which returns (gradients, state) with the "
            "same shapes and dtypes. It draws random numbers with tf.random.stateless_normal(shape, [seed, step]) and "
            "the like, and keeps what changes in its state. See mk.train.Transform."
        ) from error
    return state


def _variable(value: Any) -> KerasVariable:
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype == tf.string:
        raise TypeError(f"init returned {value!r}, which is no number.")
    return keras.Variable(tensor, dtype=tensor.dtype.name, trainable=False, name="state")


def _leaves(nest: Nest) -> dict[Any, tf.TensorSpec | None]:
    """Return shape and dtype of each leaf, by its place in the nest."""
    leaves = keras.tree.flatten_with_path(nest)
    return {place: None if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype) for place, leaf in leaves}
