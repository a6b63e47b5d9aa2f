"""Sharded optimizer state (ZeRO-1, Rajbhandari et al. 2020, arXiv:1910.02054): each replica keeps 1/N of the slots.

Every replica has the whole reduced gradient, as without sharding. It cuts its own piece out of the flat concatenation
of weights and gradients, lets the Keras optimizer update that, and the new pieces of all replicas are gathered. What
an optimizer does to a number does not depend on the numbers beside it, so the weights get the same bits.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer, KerasVariable, Variable
from mirrorkit.optim import (
    Joined,
    StandIn,
    build_for,
    decays,
    functional_apply,
    groups_of,
    slots_of,
    twin_for,
)
from mirrorkit.strategy import num_workers
from mirrorkit.train.reduce.gathering import gather_rows
from mirrorkit.train.reduce.sparse_gradient import SummedSparseGradient
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.facts import Changing, TraceFacts
from mirrorkit.train.step.global_batch import this_replica
from mirrorkit.train.step.replicated_optimizer import (
    Kept,
    ReplicatedOptimizer,
    is_elsewhere,
    needs_whole_weights,
    refuse,
)
from mirrorkit.train.step.sharded_slots import Pieces, WholeSlot, whole_values

_ASKED = "shard_optimizer=True"
_CURE = "The clip_norm and ema of Step go with it, those of an optimizer do not. Or leave out shard_optimizer."


class FlatWeights:
    """Weights that an optimizer treats alike, as one flat vector, cut into as many equal pieces as there are replicas.

    Args:
        indices: which of the weights they are.
        weights: these weights.
        replicas: number of pieces; the last ones are filled up with zeros.
    """

    def __init__(self, indices: Sequence[int], weights: Sequence[KerasVariable], replicas: int) -> None:
        self.indices = indices
        self.sizes = [math.prod(weight.shape) for weight in weights]
        self._shapes = [tuple(weight.shape) for weight in weights]
        self._replicas = replicas
        self.piece = -(-sum(self.sizes) // replicas)

    def parts(self, replica: int) -> Iterator[tuple[int, int, int]]:
        """Yield which of the weights reach into a replica's piece: their index, first and last number (exclusive)."""
        begin, at = replica * self.piece, 0
        for index, size in zip(self.indices, self.sizes, strict=True):
            first, last = max(begin - at, 0), min(begin + self.piece - at, size)
            if first < last:
                yield index, first, last
            at += size

    def own(self, values: Sequence[tf.Tensor], replica: int) -> tf.Tensor:
        """Cut a replica's piece out of one tensor for each of all weights."""
        parts = [tf.reshape(values[i], [-1])[first:last] for i, first, last in self.parts(replica)]
        return self._filled(parts, values[self.indices[0]].dtype)

    def changes(self, has_gradient: Sequence[bool], replica: int) -> tf.Tensor | None:
        """Return which numbers of a replica's piece are of weights with a gradient; None for all."""
        if all(has_gradient[i] for i in self.indices):
            return None
        parts = [tf.fill([last - first], has_gradient[i]) for i, first, last in self.parts(replica)]
        return self._filled(parts, tf.bool)

    def _filled(self, parts: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
        rest = self.piece - sum(int(part.shape[0]) for part in parts)
        return tf.concat([*parts, tf.zeros([rest], dtype)] if rest or not parts else parts, 0)

    def gathered(self, piece: tf.Tensor) -> list[tf.Tensor]:
        """Put the pieces of all replicas together, and take them apart into the weights; in replica context."""
        sizes = tf.constant([self.piece] * self._replicas, tf.int64)
        whole = tf.ensure_shape(gather_rows(piece, sizes), [self.piece * self._replicas])
        parts = tf.split(whole[: sum(self.sizes)], self.sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]


class ShardedOptimizer(ReplicatedOptimizer):
    """An optimizer that has on each replica the slots of one piece of the weights; builds it, in the strategy's scope.

    Attributes:
        whole: its variables as they would be without sharding, for checkpoints.
    """

    alone = False

    def __init__(self, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, model: KerasModel) -> None:
        self._strategy = strategy
        self._optimizer = optimizer
        self._weights = list(model.trainable_variables)
        by_kind: dict[tuple[str, bool], list[int]] = {}
        for i, weight in enumerate(self._weights):
            by_kind.setdefault((weight.dtype, decays(optimizer, weight)), []).append(i)
        replicas = strategy.num_replicas_in_sync
        self._groups = [
            FlatWeights(of_kind, [self._weights[i] for i in of_kind], replicas) for of_kind in by_kind.values()
        ]
        kinds = zip(self._groups, by_kind, strict=True)
        build_for(optimizer, [StandIn((group.piece,), dtype, has_decay) for group, (dtype, has_decay) in kinds])
        slots = [list(zip(self._groups, of_kind, strict=True)) for of_kind in slots_of(optimizer)]
        self._group_of = {id(slot): group for of_kind in slots for group, slot in of_kind}
        self.whole = self._as_without_sharding(slots)
        # Keras saves and loads an optimizer by these: into a file of the model go the whole slots.
        optimizer.save_own_variables = self._save
        optimizer.load_own_variables = functools.partial(self._load, type(optimizer).load_own_variables)

    def _as_without_sharding(
        self, slots: Sequence[Sequence[tuple[FlatWeights, KerasVariable]]]
    ) -> list[Variable | WholeSlot]:
        places: dict[int, tuple[int, int]] = {}  # of each weight: its group, and its first number in that
        for which, group in enumerate(self._groups):
            first = itertools.accumulate(group.sizes, initial=0)
            places.update((index, (which, at)) for index, at in zip(group.indices, first, strict=False))
        pieces = [[Pieces(self._strategy, slot) for _, slot in of_kind] for of_kind in slots]
        others = [variable for variable in self._optimizer.variables if id(variable) not in self._group_of]
        whole: list[Variable | WholeSlot] = []
        stand_ins = [StandIn((), weight.dtype, False, weight.path) for weight in self._weights]
        for slot in outside_replica(lambda: twin_for(self._optimizer, stand_ins))[1]:
            if slot.weight is None:
                whole.append(others[slot.kind])
            else:
                which, first_number = places[slot.weight]
                shape = self._weights[slot.weight].shape
                whole.append(WholeSlot(slot.path, shape, pieces[slot.kind][which], first_number))
        return whole

    @staticmethod
    def check(optimizer: KerasOptimizer) -> None:
        """Refuse an optimizer whose slots cannot be sharded."""
        why = needs_whole_weights(optimizer)
        if optimizer.built:
            why = f"{optimizer.name!r} is built already, with whole slots, where the step would build a new one"
        refuse(_ASKED, why, _CURE)

    @staticmethod
    def check_model(strategy: tf.distribute.Strategy, model: KerasModel) -> None:
        """Refuse strategies and models for which the slots cannot be sharded."""
        why = is_elsewhere(strategy, model)
        for weight in model.trainable_variables:
            if weight.constraint is not None:
                why = f"{weight.path!r} has a constraint ({type(weight.constraint).__name__}), of whole weights"
        refuse(_ASKED, why, _CURE)

    def saved(self, slots: Sequence[Variable]) -> list[Variable | WholeSlot]:
        """Return the whole slots."""
        return self.whole

    def joined(self, facts: TraceFacts, stages: Sequence[Hashable] | None) -> Joined:
        """Join as without sharding: the norm of joined gradients has other bits than that of single ones."""
        return Joined(self._weights, groups_of(self._optimizer, self._weights, facts.has_gradient))

    def new_values(
        self,
        joined: Joined,
        old: Changing,
        gradients: Sequence[tf.Tensor | None],
        rows: Mapping[int, SummedSparseGradient],
        rate: tf.Tensor | None,
    ) -> tuple[Kept, Kept]:
        """Return the new weights and this replica's new slots; in replica context. See `ReplicatedOptimizer`."""
        weights, slots, means = old.weights, old.slots, joined.split(gradients)
        replica = int(this_replica()[0])
        has = [mean is not None for mean in means]
        if not all(has) and replica == 0:
            paths = [weight.path for weight, there in zip(self._weights, has, strict=True) if not there]
            # In Keras's words, which knows pieces only.
            warnings.warn(f"Gradients do not exist for variables {paths} when minimizing the loss.", stacklevel=2)
        known = [tf.zeros_like(w) if g is None else g for w, g in zip(weights, means, strict=True)]
        new_pieces, new_slots = functional_apply(
            self._optimizer,
            [group.own(weights, replica) for group in self._groups],
            slots,
            [group.own(known, replica) for group in self._groups],
            rate=rate,
        )
        kept: list[tf.Tensor | None] = []
        for variable, old, new in zip(self._optimizer.variables, slots, new_slots, strict=True):
            group = self._group_of.get(id(variable))
            mask = group and group.changes(has, replica)
            kept.append(None if new is old else new if mask is None else tf.where(mask, new, old))
        after: dict[int, tf.Tensor] = {}
        for group, piece in zip(self._groups, new_pieces, strict=True):
            after.update(zip(group.indices, group.gathered(piece), strict=True))
        return [after[i] if there else None for i, there in enumerate(has)], kept

    def _save(self, store: Any) -> None:
        """Put the whole slots into a file of Keras; other workers' pieces are not at hand, so then it has none."""
        if num_workers(self._strategy) > 1:
            return
        for i, value in enumerate(whole_values(self.whole)):
            store[str(i)] = value

    def _load(self, of_keras: Callable[..., None], store: Mapping[str, Any]) -> None:
        """Take whole slots from a file of Keras, and leave it to Keras to say that there are others."""
        if len(store.keys()) != len(self.whole):
            of_keras(self._optimizer, store)
            return
        for i, variable in enumerate(self.whole):
            variable.assign(np.asarray(store[str(i)]))
