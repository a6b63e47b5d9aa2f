"""What tracing a step finds out about the model: which gradients there are, and which layer state changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import Nest, Sums
from mirrorkit.optim import Joined


class ShardSums(NamedTuple):
    """What a shard adds, and in its structure what there is to send: None stands for what is not."""

    gradients: dict[int, list[tf.Tensor | None]]  # for each term, by the index of its divisor: one for each weight
    state: list[tf.Tensor | None]  # one for each variable of the layer state
    totals: tf.Tensor

    @property
    def sent(self) -> Sums:
        """The sums that travel: a nest without None, which users may add up."""
        flat = [gradient for divisor in sorted(self.gradients) for gradient in self.gradients[divisor]]
        return {
            "gradients": [gradient for gradient in flat if gradient is not None],
            "state": [value for value in self.state if value is not None],
            "totals": self.totals,
        }


@dataclass(frozen=True)
class TraceFacts:
    """What is known once a step was traced; the same for every trace."""

    divisors: tuple[int, ...]  # for each term of the loss the index of the total that divides it
    has_gradient: tuple[tuple[bool, ...], ...]  # for each term and weight
    changes: tuple[bool, ...]  # for each variable of the layer state whether training changes it, so that it is sent
    specs: Nest  # shape and dtype of each tensor that is sent

    @classmethod
    def of(cls, sums: ShardSums) -> TraceFacts:
        """Read them off what a trace returns."""
        divisors = tuple(sorted(sums.gradients))
        return cls(
            divisors,
            tuple(tuple(gradient is not None for gradient in sums.gradients[divisor]) for divisor in divisors),
            tuple(value is not None for value in sums.state),
            tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), sums.sent),
        )

    def means(self, joined: Joined, flat: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Divide the gradient of each term and add them up: one for each joined weight, None where it has none."""
        sums = iter(flat)
        means: list[tf.Tensor | None] = []
        for divisor, of_term in zip(divisors, self.has_gradient, strict=True):
            parts = joined.join([next(sums) if has else None for has in of_term])
            means = means or [None] * len(parts)
            for i, gradient in enumerate(parts):
                if gradient is not None:
                    mean = tf.math.divide_no_nan(gradient, tf.cast(divisor, gradient.dtype))
                    before = means[i]
                    means[i] = mean if before is None else before + mean
        return means

    @property
    def zeros(self) -> Sums:
        """What a shard without examples adds."""
        return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), self.specs)
