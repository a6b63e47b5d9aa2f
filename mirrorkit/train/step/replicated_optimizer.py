"""The optimizer on every replica: each has all slots, and updates all weights. `sharded_optimizer.py` cuts them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer, Nest, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined, Packed, functional_apply, trainable_variables
from mirrorkit.train.reduce.sparse_gradient import SummedSparseGradient
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.changing import Changing, none_where_kept
from mirrorkit.train.step.facts import TraceFacts
from mirrorkit.train.step.sharded_slots import WholeSlot

Kept: TypeAlias = "list[tf.Tensor | None]"  # new values, None for what stays


class Gradient(NamedTuple):
    """What an optimizer is given for one update."""

    mean: Callable[[Joined], Kept]  # clipped, of the whole batch: one for each joined weight, None where it has none
    average: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]]  # (averages, new weights)
    rate: tf.Tensor | None  # as of `functional_apply`
    rows: Mapping[int, SummedSparseGradient] = {}  # of a table, by its number: the rows that `mean` has in place of all


class ReplicatedOptimizer:
    """An optimizer with all slots on each replica; builds it, in the strategy's scope.

    Attributes:
        alone: whether an update talks to no other replica.
        tables: the numbers of the weights that are written in place, a part at a time; see `tables.py`.
        lazy: whether rows of tables change only where a batch looks them up.
    """

    alone = True
    tables: Sequence[int] = ()
    lazy = False

    def __init__(self, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, model: KerasModel) -> None:
        self._optimizer = optimizer
        optimizer.build(list(model.trainable_variables))
        if [id(v) for v in trainable_variables(optimizer)] != [id(v) for v in model.trainable_variables]:
            raise StepError(
                f"The optimizer {optimizer.name!r} was built for other variables than the "
                f"{len(model.trainable_variables)} trainable ones of model {model.name!r}. Create a new optimizer in "
                "the strategy's scope."
            )

    def saved(self, slots: Sequence[Variable]) -> list[Variable | WholeSlot]:
        """Return the optimizer's variables as checkpoints hold them."""
        return list(slots)

    def in_place(self, weights: Sequence[Variable]) -> list[Variable]:
        """Return the variables that the update writes by itself."""
        return []

    def summed(
        self, gradients: Sequence[tf.Tensor], facts: TraceFacts
    ) -> tuple[list[tf.Tensor], dict[int, SummedSparseGradient]]:
        """Return the sums that were sent, of tables by rows; there are none."""
        return list(gradients), {}

    def update(
        self, pure: Callable[..., Nest], sums: Sums, flat: Sequence[tf.Tensor], rate: Sequence[tf.Tensor]
    ) -> tuple[Kept, tf.Tensor]:
        """Compute new values and totals by `Functions._pure_new_values`."""
        new: tuple[Kept, tf.Tensor] = pure(sums, list(flat), rate)[:2]
        return new

    def new_values(
        self, old: Changing, gradient: Gradient, facts: TraceFacts, stages: Sequence[Hashable] | None
    ) -> tuple[Kept, Kept, Kept]:
        """Return new weights, slots and averages of the weights.

        Args:
            old: the values before; of the averages those of the weights.
            gradient: what the update follows from.
            facts: which weights have one.
            stages: for each weight the number of its device, where they differ.
        """
        # It makes variables, which no trace may.
        packed = outside_replica(lambda: Packed(self._optimizer, facts.has_gradient, stages))
        weights, slots = packed.join(old.weights), packed.join_slots(old.slots)
        new, new_slots = functional_apply(packed.optimizer, weights, slots, gradient.mean(packed), rate=gradient.rate)
        averages = packed.split(gradient.average(packed.join(old.averages), new)) if old.averages else []
        new, new_slots = none_where_kept(weights, new), none_where_kept(slots, new_slots)
        return packed.split(new), packed.split_slots(new_slots), averages
