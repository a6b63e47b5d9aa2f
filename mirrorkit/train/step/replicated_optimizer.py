"""The optimizer on every replica: each has all slots, and updates all weights. `sharded_optimizer.py` cuts them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer, Nest, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined, Packed, functional_apply, trainable_variables, treats_numbers_alike
from mirrorkit.strategy import class_name, has_copies, is_tpu
from mirrorkit.train.reduce.sparse_gradient import SummedSparseGradient
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.devices import are_placed
from mirrorkit.train.step.facts import Changing, TraceFacts
from mirrorkit.train.step.sharded_slots import WholeSlot

Kept: TypeAlias = "list[tf.Tensor | None]"  # new values, None for what stays


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

    def __init__(self, optimizer: KerasOptimizer, model: KerasModel) -> None:
        self._optimizer = optimizer
        optimizer.build(list(model.trainable_variables))
        if [id(v) for v in trainable_variables(optimizer)] != [id(v) for v in model.trainable_variables]:
            raise StepError(
                f"The optimizer {optimizer.name!r} was built for other variables than the "
                f"{len(model.trainable_variables)} trainable ones of model {model.name!r}. Create a new optimizer in "
                "the strategy's scope."
            )

    @property
    def iterations(self) -> int:
        """The place of the number of updates among the optimizer's variables."""
        return next(i for i, v in enumerate(self._optimizer.variables) if v is self._optimizer.iterations)

    def saved(self, slots: Sequence[Variable]) -> list[Variable | WholeSlot]:
        """Return the optimizer's variables as checkpoints hold them."""
        return list(slots)

    def in_place(self, weights: Sequence[Variable]) -> list[Variable]:
        """Return the variables that the update writes by itself."""
        return []

    def write(
        self, old: Changing, rate: Sequence[tf.Tensor], gradients: Sequence[Nest], finite: Sequence[tf.Tensor]
    ) -> None:
        """Write what `new_values` leaves to it; there is nothing."""

    def joined(self, facts: TraceFacts, stages: Sequence[Hashable] | None) -> Joined:
        """Return how an update joins weights.

        Args:
            facts: which weights have a gradient.
            stages: for each weight the number of its device, where they differ.
        """
        # It makes variables, which no trace may.
        return outside_replica(lambda: Packed(self._optimizer, facts.has_gradient, stages, elsewhere=self.tables))

    def new_values(
        self,
        joined: Any,
        old: Changing,
        gradients: Sequence[tf.Tensor | None],
        rows: Mapping[int, SummedSparseGradient],
        rate: tf.Tensor | None,
    ) -> tuple[Kept, Kept]:
        """Return new weights and slots.

        Args:
            joined: what the method of this name returned.
            old: the values before.
            gradients: one for each joined weight, None where it has none.
            rows: of a table, by its number: the rows that `gradients` has in place of all.
            rate: as of `functional_apply`.
        """
        weights, slots = joined.join(old.weights), joined.slots.join(old.slots)
        new, new_slots = functional_apply(joined.optimizer, weights, slots, gradients, rate=rate)
        return joined.split(_changed(weights, new)), joined.slots.split(_changed(slots, new_slots))


def _changed(old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]) -> Kept:
    """Return `new` with None where the optimizer left the value as it was: a learning rate need not be written."""
    return [None if after is before else after for before, after in zip(old, new, strict=True)]


def needs_whole_weights(optimizer: KerasOptimizer) -> str | None:
    """Return why its update of a part of the weights would not be a part of that of all, in words; None if it is."""
    for option in ("clipnorm", "global_clipnorm", "use_ema"):
        if value := getattr(optimizer, option):
            return f"{type(optimizer).__name__}({option}={value}) looks at whole weights"
    if treats_numbers_alike(optimizer):
        return None
    return (
        "it is for optimizers that treat every number of the weights alike, which is known of Keras's own SGD, Adam, "
        "AdamW, Nadam, Adamax, Adagrad, Adadelta, RMSprop and Lion; found "
        f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    )


def is_elsewhere(strategy: tf.distribute.Strategy, model: KerasModel) -> str | None:
    """Return where the weights are, if not on the device of each replica."""
    if not has_copies(strategy) or is_tpu(strategy):
        return f"{class_name(strategy)} has no copy of the weights on each replica, as mirrored and multi_worker have"
    is_placed = are_placed(strategy, [*model.trainable_variables, *model.non_trainable_variables])
    return "the model is placed on several devices (mk.parallel.Layout)" if is_placed else None


def refuse(asked: str, why: str | None, cure: str) -> None:
    """Refuse what was asked for, if there is a reason."""
    if why:
        raise StepError(f"{asked} was asked for, and {why}. {cure}")
