"""Tables: large weights of Embedding layers, which an update writes in place, a part at a time.

A batch looks up few rows of a table, and its gradient stays those rows (`reduce/sparse_gradient.py`). Where an
optimizer leaves a row without a gradient as it is, only those rows of the weight and its slots are read and written.
Other optimizers change every row; they are given the table in blocks of rows, so that neither a dense gradient nor a
second copy of weight and slots is held.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer, Nest, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.optim import ByRows, Joined, leaves_rows_alone, places_of
from mirrorkit.strategy import local_replica, num_workers, replica_devices
from mirrorkit.train.keras_model.layer_state import LayerState, layers_of
from mirrorkit.train.reduce.sparse_gradient import SummedSparseGradient
from mirrorkit.train.reduce.tracing import TraceOnce, outside_replica
from mirrorkit.train.step.facts import Changing
from mirrorkit.train.step.loss_scale import only_if
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.replicated_optimizer import (
    Kept,
    ReplicatedOptimizer,
    is_elsewhere,
    needs_whole_weights,
    refuse,
)

LAZY = "lazy"  # of `Step(sparse_embeddings=)`
_WITHOUT = "Leave out sparse_embeddings: then tables are updated as Keras updates them."
# In bytes: from which size on a weight is a table, where an update changes some rows, and where all. The time of a step
# by that with a dense gradient, on two replicas: some rows 0.2 to 0.9 at 16 MiB; all rows 1.2 to 1.3 at 16, 0.9 at 64.
# Between workers the dense gradient would be sent, and all rows take 0.6 to 0.9 with a table of 24 MiB.
_SOME_ROWS, _ALL_ROWS = 2**24, 2**26
# Bytes of a table that are updated at a time. On a GPU each block costs launches: with tables of 122 and 24 MiB and
# Adam a step took 17 ms with blocks of 4 MiB, 5 with 64 and with 256; 3 with dense gradients (one H200, n = 3).
_BLOCK, _GPU_BLOCK = 2**22, 2**26


class RowGradient(NamedTuple):
    """The mean gradient of rows of a table, clipped."""

    ids: tf.Tensor  # int64 [n], ascending; a row may stand there several times
    values: tf.Tensor  # [n, width], all of its row's gradient each time


class TableOptimizer(ReplicatedOptimizer):
    """An optimizer with all slots on each replica, which updates large ones of `tables`, weights by numbers, in place.

    With `lazy` a row changes in those steps alone that look it up.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        optimizer: KerasOptimizer,
        model: KerasModel,
        tables: Sequence[int],
        *,
        lazy: bool,
    ) -> None:
        super().__init__(optimizer, model)
        weights = model.trainable_variables
        self._is_by_rows = {i: lazy or leaves_rows_alone(optimizer, weights[i]) for i in tables}
        several = num_workers(strategy) > 1
        self.tables = [i for i in tables if several or self._is_by_rows[i] or size_of(weights[i]) >= _ALL_ROWS]
        self._strategy, self.lazy = strategy, lazy
        self._shapes = [tuple(weight.shape) for weight in weights]
        self._pure: dict[tuple[int, int], tuple[ByRows, TraceOnce]] = {}  # by table and number of rows
        self._slots = [of_all[i] for of_all in places_of(optimizer)[0] for i in self.tables]

    def in_place(self, weights: Sequence[Variable]) -> list[Variable]:
        """Return the tables and their slots."""
        return [*(weights[i] for i in self.tables), *(self._optimizer.variables[place] for place in self._slots)]

    def new_values(
        self,
        joined: Joined,
        old: Changing,
        gradients: Sequence[tf.Tensor | None],
        rows: Mapping[int, SummedSparseGradient],
        rate: tf.Tensor | None,
    ) -> tuple[Kept, Kept]:
        """Return new weights and slots; in place of a table's new value its gradient (see `write`)."""
        means, of_tables = list(gradients), dict[int, "tf.Tensor | RowGradient | None"]()
        for i in self.tables:
            place = joined.group_of(i)
            of_tables[i] = mean = means[place]
            if mean is not None and i in rows:
                of_tables[i] = RowGradient(rows[i].ids, tf.gather(mean, rows[i].number))
            means[place] = None if mean is None else tf.zeros_like(old.weights[i])
        new, new_slots = super().new_values(joined, old, means, rows, rate)
        every = [of_tables.get(i, value) for i, value in enumerate(new)]
        held = [None if place in self._slots else value for place, value in enumerate(new_slots)]
        return every, held

    def write(
        self, old: Changing, rate: Sequence[tf.Tensor], gradients: Sequence[Nest], finite: Sequence[tf.Tensor]
    ) -> None:
        """Write the tables and their slots, of which `old` has the variables."""
        outside_replica(lambda: _separate([one for one in old.flat if isinstance(one, tf.Variable)]))
        for i, gradient in zip(self.tables, gradients, strict=True):
            if gradient is not None:
                self._write(i, old, rate, gradient, finite)

    def _write(
        self,
        table: int,
        old: Changing,
        rate: Sequence[tf.Tensor],
        gradient: tf.Tensor | RowGradient,
        finite: Sequence[tf.Tensor],
    ) -> None:
        by_rows, weight = self._pure_of(table, 1)[0], old.weights[table]
        held = [old.slots[place] for place in by_rows.places]
        own = [weight, *itertools.compress(held, by_rows.is_slot)]

        def read(ids: tf.Tensor) -> list[tf.Tensor]:
            return [tf.gather(variable, ids) for variable in own]

        def write(ids: tf.Tensor, before: list[tf.Tensor], values: tf.Tensor) -> None:
            of_slots = iter(before[1:])
            given = [next(of_slots) if has else slot for slot, has in zip(held, by_rows.is_slot, strict=True)]
            new = self._pure_of(table, ids.shape[0])[1](before[0], given, values, rate, finite)
            for variable, value in zip(own, new, strict=True):
                variable.scatter_update(tf.IndexedSlices(value, ids))

        def write_all(gradient_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
            size, width = self._shapes[table]
            device = replica_devices(self._strategy)[local_replica(self._strategy)]
            length = max(1, min(size, (_GPU_BLOCK if "GPU" in device else _BLOCK) // (width * weight.dtype.size)))

            def block(first: tf.Tensor) -> list[tf.Tensor]:
                with tf.device(device):
                    # The last block may have the last row several times: each time it is given the same values.
                    ids = tf.minimum(first + tf.range(length, dtype=tf.int64), size - 1)
                    write(ids, read(ids), gradient_of(ids))
                return [first + length]

            with tf.device(HOST):  # which would wait for a GPU in each round; so it would with `maximum_iterations`
                tf.while_loop(lambda first: first < size, block, [tf.constant(0, tf.int64)])

        if not isinstance(gradient, RowGradient):
            write_all(lambda ids: tf.gather(gradient, ids))
            return
        before = read(gradient.ids)
        if not self._is_by_rows[table]:  # most rows have a gradient of zero; the others are written once more
            write_all(lambda ids: tf.zeros([], gradient.values.dtype))
        write(gradient.ids, before, gradient.values)

    def _pure_of(self, table: int, rows: int) -> tuple[ByRows, TraceOnce]:
        """Return the optimizer for so many rows of a table, and its arithmetic, which all replicas share."""
        if (table, rows) not in self._pure:
            by_rows = outside_replica(lambda: ByRows(self._optimizer, table, rows))

            def pure(
                old: tf.Tensor,
                given: list[tf.Tensor],
                values: tf.Tensor,
                rate: Sequence[tf.Tensor],
                finite: Sequence[tf.Tensor],
            ) -> list[tf.Tensor]:
                new = by_rows(old, given, values, rate[0] if rate else None)
                if not finite:
                    return new
                return only_if(finite[0], new, [old, *itertools.compress(given, by_rows.is_slot)])

            self._pure[table, rows] = by_rows, TraceOnce(pure)
        return self._pure[table, rows]


def check(options: Options, optimizer: KerasOptimizer) -> None:
    """Refuse a way to update tables that is none, or that the other options exclude; before there is a strategy."""
    asked = options.sparse_embeddings
    if asked not in (True, False, "auto", LAZY):
        raise StepError(f'sparse_embeddings is "auto", True, False or "lazy"; found {asked!r}.')
    if asked in (True, LAZY):
        refuse(f"sparse_embeddings={asked!r}", _excluded(options, optimizer), _WITHOUT)


def tables_of(
    options: Options, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, model: KerasModel
) -> list[int]:
    """Return the numbers of the weights that may be updated in place."""
    asked, weights = options.sparse_embeddings, model.trainable_variables
    on_cpus = all("CPU" in device for device in replica_devices(strategy))
    if asked is False or (asked == "auto" and (not on_cpus or _excluded(options, optimizer))):
        return []
    least, large = (0, "") if asked == LAZY else (_SOME_ROWS, " of 16 MiB or more")
    embeddings = {id(weight) for weight in _embeddings(model) if _fits(weight) and size_of(weight) >= least}
    why = is_elsewhere(strategy, model)
    if not embeddings:
        why = f"the model has no trainable keras.layers.Embedding of float32 without a constraint{large}"
    elif asked == LAZY and LayerState(model).synchronized:
        why = "synchronized layers compute with the rows of all replicas"
    elif asked == LAZY and (others := [weight.path for weight in _embeddings(model) if not _fits(weight)]):
        why = f"{', '.join(others)} is not of float32, or has a constraint"
    if asked != "auto":
        refuse(f"sparse_embeddings={asked!r}", why, _WITHOUT)
    return [] if why else [i for i, weight in enumerate(weights) if id(weight) in embeddings]


def size_of(weight: Variable) -> int:
    """Return the size of a table in bytes."""
    return int(weight.shape[0] * weight.shape[1] * tf.as_dtype(weight.dtype).size)


def needs_rows(why: str) -> StepError:
    """Return the error where it is not known which rows of a table a batch looks up, and the update depends on it."""
    return StepError(
        f'sparse_embeddings="lazy" updates the rows that a batch looks up, and {why}. It needs global batches of known '
        "sizes from a Loop, one for each update, and tables that the model looks up and uses for nothing else: no tied "
        "weights, no regularizer. Leave out sparse_embeddings: then all rows are updated, as in Keras."
    )


def _excluded(options: Options, optimizer: KerasOptimizer) -> str | None:
    """Return why these options cannot be with tables that are updated in place; None where they can."""
    given = {
        "ema": options.ema,
        "transforms": options.transforms,  # which see whole gradients
        "jit_compile": options.jit_compile is True,
        "shard_optimizer": options.shard_optimizer,
    }
    if options.sparse_embeddings == LAZY:  # which rows were looked up is known for one batch at a time
        given |= {"accumulate": options.accumulate > 1, "whole_batch": options.whole_batch}
    for name, value in given.items():
        if value:
            return f"{name}={getattr(options, name)} excludes it"
    return needs_whole_weights(optimizer)


def _embeddings(model: KerasModel) -> Iterator[Variable]:
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Embedding):
            for weight in layer.trainable_variables:
                if tuple(weight.shape) == (layer.input_dim, layer.output_dim):  # and no part of a LoRA
                    yield weight


def _fits(weight: Variable) -> bool:
    return bool(weight.dtype == "float32" and weight.constraint is None)


def _separate(variables: Sequence[tf.Variable]) -> None:
    """Let each of a replica's tables and slots have memory of its own, before an update is run, by writing no row.

    Replicas on CPUs begin with the same memory, which TensorFlow copies when one of them writes: at the same time, all
    of them would, and what they share would stay beside the copies until the last one is made.
    """
    for one in variables:
        one.scatter_update(tf.IndexedSlices(tf.zeros([0, *one.shape[1:]], one.dtype), tf.zeros([0], tf.int64)))
