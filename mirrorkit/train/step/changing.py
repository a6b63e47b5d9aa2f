"""What an update of a step changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from mirrorkit._types import KerasVariable

Values: TypeAlias = "list[KerasVariable | tf.Tensor]"


class Changing(NamedTuple):
    """What an update changes, in groups: variables, or their values."""

    weights: Values
    state: Values  # of layers
    slots: Values
    averages: Values
    transforms: Values  # their states
    scale: Values

    def regroup(self, flat: Sequence[tf.Tensor]) -> Changing:
        """Put a flat list of as many things into the same groups."""
        rest = iter(flat)
        return Changing(*[[next(rest) for _ in group] for group in self])

    @property
    def flat(self) -> Values:
        """All groups in one list."""
        return [thing for group in self for thing in group]


def none_where_kept(old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Return `new` with None where the optimizer left the value as it was: a learning rate need not be written."""
    return [None if after is before else after for before, after in zip(old, new, strict=True)]


def dense(gradient: tf.Tensor | tf.IndexedSlices, shape: Sequence[int]) -> tf.Tensor:
    """Return a dense gradient of static shape: some optimizers treat sparse ones differently."""
    return tf.ensure_shape(tf.convert_to_tensor(gradient), shape)
