"""What an update of a step changes, and what tracing finds out: which gradients there are, which state changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from mirrorkit._types import KerasVariable, Nest, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined
from mirrorkit.train.reduce.sparse_gradient import SparseGradient, SummedSparseGradient, block_of, dense_of, summed
from mirrorkit.train.step.global_batch import this_replica
from mirrorkit.variables import path

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

    @property
    def values(self) -> Changing:
        """The values as a trace takes them: those of a table, which is a variable, of one row."""
        return self.regroup([_row_of(one) if isinstance(one, tf.Variable) else one for one in self.flat])


class ShardSums(NamedTuple):
    """What a shard adds, and in its structure what there is to send: None stands for what is not."""

    gradients: list[list[tf.Tensor | SparseGradient | None]]  # for each term of the loss: one for each weight
    divisors: list[tf.Tensor]  # for each term but the first, which the DIVISOR of the totals divides
    state: list[tf.Tensor | None]  # one for each variable of the layer state
    totals: tf.Tensor

    def sent(self, rows: Callable[[int, SparseGradient], Nest]) -> Sums:
        """Return the sums that travel, a nest without None; `rows` says what stands for those of a weight's rows."""
        flat = [pair for of_term in self.gradients for pair in enumerate(of_term)]
        of_weights = [rows(i, one) if isinstance(one, SparseGradient) else one for i, one in flat if one is not None]
        return {
            "gradients": of_weights,
            "divisors": self.divisors,
            "state": [value for value in self.state if value is not None],
            "totals": self.totals,
        }

    @property
    def nothing(self) -> ShardSums:
        """What a shard without examples adds."""

        def zeros(value: tf.Tensor | SparseGradient | None) -> Nest:
            if isinstance(value, SparseGradient):
                return SparseGradient(*[tf.zeros([0, *one.shape[1:]], one.dtype) for one in value])
            return None if value is None else tf.zeros(value.shape, value.dtype)

        gradients = [[zeros(one) for one in of_term] for of_term in self.gradients]
        divisors, state = ([zeros(value) for value in values] for values in (self.divisors, self.state))
        return ShardSums(gradients, divisors, state, zeros(self.totals))


def to_send(sums: ShardSums, largest: ShardSums | None, weights: Sequence[Variable], *, always: bool) -> Sums:
    """Return the sums that travel, those of tables by rows where this is less, or `always`; in replica context.

    Args:
        sums: of this replica.
        largest: those of the replica with the most examples; only the shapes count. Without them no rows travel.
        weights: the variables.
    """
    replica, replicas = this_replica()
    lengths: dict[int, int] = {}  # of the blocks, by the number of the weight
    for i, like in enumerate(largest.gradients[0] if largest else []):  # other terms are dense
        if not isinstance(like, SparseGradient):
            continue
        length, (size, width), own = like.ids.shape[0], weights[i].shape, sums.gradients[0][i]
        if not always and replicas * length * (width + 2) >= size * width:
            continue
        if not (isinstance(own, SparseGradient) and own.ids.shape[0] <= length):
            raise StepError(
                f"A share of the batch looks up more rows of {path(weights[i])!r} than one with more examples, so its "
                "rows do not fit into the message that all replicas send. Let the model look up the same rows for a "
                "share of any size, or train with sparse_embeddings=False."
            )
        lengths[i] = length

    def sent(weight: int, rows: SparseGradient) -> tf.Tensor:
        if weight in lengths:
            return block_of(rows, replica, replicas, lengths[weight])
        return dense_of(rows.ids, rows.values, weights[weight].shape[0])

    return sums.sent(sent)


def _row_of(table: tf.Variable) -> tf.Tensor:
    return tf.zeros([1, *table.shape[1:]], table.dtype)


@dataclass(frozen=True)
class TraceFacts:
    """What is known once a step was traced; the same for every trace."""

    has_gradient: tuple[tuple[bool, ...], ...]  # for each term and weight
    changes: tuple[bool, ...]  # for each variable of the layer state whether training changes it, so that it is sent
    specs: Nest  # shape and dtype of each tensor that is sent

    @classmethod
    def of(cls, sums: ShardSums, shapes: Sequence[Sequence[int]]) -> TraceFacts:
        """Read them off what a trace returns; `shapes` are those of the weights."""
        return cls(
            tuple(tuple(gradient is not None for gradient in of_term) for of_term in sums.gradients),
            tuple(value is not None for value in sums.state),
            tf.nest.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
                sums.sent(lambda i, rows: tf.TensorSpec(shapes[i], rows.values.dtype)),
            ),
        )

    def require_same(self, other: TraceFacts) -> None:
        """Refuse a trace that finds others."""
        if self != other:
            raise StepError(
                "Batches of this shape give other weights a gradient, or change other layer state, than earlier ones: "
                "the model or the loss computes something else, or a layer's `trainable` was changed since. Let it do "
                "the same for batches of any size, or make a new optimizer and a new Step."
            )

    def summed(
        self, gradients: Sequence[tf.Tensor], tables: Sequence[int]
    ) -> tuple[list[tf.Tensor], dict[int, SummedSparseGradient]]:
        """Return the sums that were sent, those of a table for its rows, and of these which rows they are."""
        sums, rows = list(gradients), dict[int, SummedSparseGradient]()
        for place, i in enumerate(self.weights):
            if i in tables and sums[place].shape.rank == 3:  # blocks of rows; a dense gradient has the rank 2
                rows[i] = summed(sums[place])
                sums[place] = rows[i].sums
        return sums, rows

    def means(
        self, joined: Joined, flat: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor | None]
    ) -> list[tf.Tensor | None]:
        """Divide the gradient of each term and add them up: one for each joined weight, None where it has none.

        A divisor that is None stands for 1.
        """
        sums = iter(flat)
        means: list[tf.Tensor | None] = []
        for divisor, of_term in zip(divisors, self.has_gradient, strict=True):
            parts = joined.join([next(sums) if has else None for has in of_term])
            means = means or [None] * len(parts)
            for i, gradient in enumerate(parts):
                if gradient is not None:
                    by = None if divisor is None else tf.cast(divisor, gradient.dtype)
                    mean = gradient if by is None else tf.math.divide_no_nan(gradient, by)
                    means[i] = mean if means[i] is None else means[i] + mean
        return means

    @property
    def weights(self) -> list[int]:
        """Of which weight each gradient is that is sent, by its number."""
        return [i for of_term in self.has_gradient for i, has in enumerate(of_term) if has]
