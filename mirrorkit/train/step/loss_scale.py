"""Loss scaling for float16: small gradients survive, and a step whose gradient overflowed is skipped.

Whether a gradient is finite is read from the *reduced* gradient (Inf and NaN survive a sum), so all replicas skip the
same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.reduction import pack


@dataclass(frozen=True)
class LossScale:
    """The factor by which the loss is multiplied before its gradient is taken.

    ```python
    step = mk.train.Step(model, optimizer, loss=loss, loss_scale=mk.train.LossScale(initial=1024.0))
    ```

    The rule and its constants are those of Keras's `LossScaleOptimizer` (Micikevicius et al. 2018, arXiv:1710.03740).

    Args:
        initial: the first scale.
        growth_steps: after so many finite steps in a row the scale doubles; after a skipped step it halves. `None` for
            a scale that stays as it is.
    """

    initial: float = 2.0**15
    growth_steps: int | None = 2000

    def __post_init__(self) -> None:
        """Refuse constants that are out of range."""
        if not (self.initial > 0 and math.isfinite(self.initial)):
            raise StepError(f"The loss scale must be a positive number, found {self.initial!r}.")
        if self.growth_steps is not None and self.growth_steps < 1:
            raise StepError(f"growth_steps must be a whole number from 1 on, or None; found {self.growth_steps!r}.")

    @classmethod
    def of(cls, given: object) -> LossScale | None:
        """Convert what `Step(loss_scale=...)` takes: None, "dynamic", a number (a fixed scale) or a `LossScale`."""
        if given is None or isinstance(given, LossScale):
            return given
        if given == "dynamic":
            return cls()
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return cls(initial=float(given), growth_steps=None)
        raise StepError(f'loss_scale must be None, "dynamic", a number or a mk.train.LossScale; found {given!r}.')

    def create(self) -> list[KerasVariable]:
        """Create its variables: the scale, finite steps since it last changed, skipped steps; in a strategy's scope."""
        with keras.name_scope("loss_scale"):
            scale = keras.Variable(self.initial, dtype="float32", trainable=False, name="scale")
            counters = [
                keras.Variable(0, dtype="int64", trainable=False, name=name) for name in ("good_steps", "skipped_steps")
            ]
        return [scale, *counters]

    def new_values(self, finite: tf.Tensor, values: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return the variables' new values after a step that was `finite` or skipped."""
        scale, good, skipped = values
        skipped += tf.cast(~finite, skipped.dtype)
        if self.growth_steps is None:
            return [None, None, skipped]
        grows = finite & (good + 1 >= self.growth_steps)
        scale = tf.where(finite, tf.where(grows, scale * 2, scale), scale / 2)
        return [scale, tf.where(finite & ~grows, good + 1, 0), skipped]


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return whether every number in `tensors` is finite (bool scalar); they are floating, and of static shape."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(message)) for message in pack(tensors)])


def only_if(condition: tf.Tensor, new: Sequence[tf.Tensor | None], old: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Return `new`, or the `old` values, bit for bit, where the condition does not hold; None where `new` has None.

    No `tf.cond`: its predicate is wanted on the host, which would wait in every step for all that a GPU has to do.
    `Select` with a scalar condition passes one of both on without a copy on CPU, where `tf.where` writes a third.
    """
    return [
        None if value is None else tf.raw_ops.Select(condition=condition, x=value, y=before)
        for value, before in zip(new, old, strict=True)
    ]
