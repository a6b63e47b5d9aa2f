"""Slots that are spread over the replicas, seen as the whole ones that a checkpoint holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasVariable, Variable
from mirrorkit.strategy import first_replica, num_workers, replica_devices, worker_index
from mirrorkit.train.reduce.gathering import gather_rows
from mirrorkit.variables import copies, mark_sharded, native


class Pieces:
    """A flat variable of which each replica's copy holds one piece of a longer vector, in the replicas' order."""

    def __init__(self, strategy: tf.distribute.Strategy, variable: KerasVariable) -> None:
        mark_sharded(variable)
        self._strategy = strategy
        self._variable = variable
        self._size = int(variable.shape[0])
        self.dtype = str(variable.dtype)
        self.is_collective = num_workers(strategy) > 1

    def values(self) -> np.ndarray:
        """Return the pieces of all replicas, one after the other; on several workers all of them must call it."""
        if self.is_collective:
            return np.asarray(self._gathered())
        return np.concatenate([copy.numpy() for copy in copies(self._variable)])

    def write(self, first: int, values: np.ndarray) -> None:
        """Write flat values from number `first` on into the copies of this worker's replicas that hold them."""
        before = worker_index(self._strategy) * len(replica_devices(self._strategy))  # replicas of other workers
        for replica, copy in enumerate(copies(self._variable), start=before):
            begin = replica * self._size
            start, end = max(first, begin), min(first + len(values), begin + self._size)
            if start < end:
                copy[start - begin : end - begin].assign(values[start - first : end - first])

    @functools.cached_property
    def _gathered(self) -> Any:
        strategy, own = self._strategy, native(self._variable)
        sizes = tf.constant([self._size] * strategy.num_replicas_in_sync, tf.int64)

        def on_replica() -> tf.Tensor:
            return gather_rows(tf.identity(own), sizes)

        run = tf.function(lambda: first_replica(strategy, strategy.run(on_replica)), autograph=False)
        return run.get_concrete_function()


class WholeSlot:
    """A weight's slot that lies in `Pieces`; has of a variable what checkpoints need.

    Args:
        path: of the slot that an optimizer has without sharding.
        shape: of the weight.
        pieces: where it lies.
        first: number of its first element in these.
    """

    trainable = False

    def __init__(self, path: str, shape: Sequence[int], pieces: Pieces, first: int) -> None:
        self.path = path
        self.shape = tuple(shape)
        self.pieces, self.dtype = pieces, pieces.dtype
        self._first = first

    def of(self, values: np.ndarray) -> np.ndarray:
        """Cut the slot out of what `pieces.values()` returned."""
        return values[self._first : self._first + math.prod(self.shape)].reshape(self.shape)

    def numpy(self) -> np.ndarray:
        """Return the whole slot; on several workers all of them must call it."""
        return self.of(self.pieces.values())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole slot as NumPy asks for it."""
        return np.asarray(self.numpy(), dtype)

    def assign(self, value: Any) -> None:
        """Write the whole slot: each replica of this worker takes its part."""
        value = np.broadcast_to(np.asarray(value), self.shape)
        self.pieces.write(self._first, value.reshape(-1))


def whole_values(variables: Sequence[Variable | WholeSlot]) -> list[np.ndarray]:
    """Copy values off the devices: of a variable the first replica's, of a sharded slot all; see `are_collective`."""
    read: dict[int, np.ndarray] = {}  # each vector of pieces once, for all the slots in it
    values = []
    for variable in variables:
        if isinstance(variable, WholeSlot):
            pieces = variable.pieces
            if id(pieces) not in read:
                read[id(pieces)] = pieces.values()
            values.append(variable.of(read[id(pieces)]))
        else:
            values.append(copies(variable)[0].numpy())
    return values


def are_collective(variables: Sequence[Variable | WholeSlot]) -> bool:
    """Return whether all workers must call `whole_values` together, because other workers hold parts of them."""
    return any(isinstance(variable, WholeSlot) and variable.pieces.is_collective for variable in variables)
