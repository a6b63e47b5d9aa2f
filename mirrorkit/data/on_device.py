"""A set kept on the devices: gathered and augmented there, so that a step needs only the indices of its rows."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.augment import RowsToMake
from mirrorkit.data.in_memory import Batches
from mirrorkit.data.order import order_of
from mirrorkit.data.rows import HOST, Rows
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.strategy import replica_devices, worker_index
from mirrorkit.whole import is_whole


@dataclass(frozen=True, eq=False, kw_only=True)
class Resident(Batches):
    """A recipe like `batches`, whose examples `mk.train.Loop` keeps on the devices.

    `mk.data.resident` is this class. Its arguments are the recipe's attributes.

    ```python
    train = mk.data.resident(digits.train, global_batch_size=256, shuffle=True, seed=0)
    loop.fit(train, epochs=2)
    ```

    Every device holds the set, in as many bytes as the split has (rows of uint8 pixels are padded to words of 8 bytes).
    Only int32 arrays stay on the host, where TensorFlow keeps them for GPUs too. Order, batches, augmented images and
    dtypes are those of `batches` with the same seed. `map` and `augment` run on the device, on each replica's own rows.

    Args:
        split: from `mk.data.load`, `mk.data.synthetic` or `mk.data.arrays`.
        global_batch_size, shuffle, seed, augment, map, one_hot, drop_remainder: as in `batches`.
        shards: 1, or the number of replicas: every replica then holds one part of the set, and draws only from it.

    Raises:
        RecipeError: what `batches` refuses; shards that divide the set or the batch unevenly.
        DataError: in `Loop`: the set does not fit into a device's memory.
    """

    shards: int = 1
    cache: bool = field(init=False, default=False)
    prefetch: int = field(init=False, default=tf.data.AUTOTUNE)
    _placed: Any = field(init=False, default_factory=weakref.WeakKeyDictionary, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        if not is_whole(self.shards):
            raise RecipeError(f"shards={self.shards!r} was asked for; it must be 1 or the number of replicas.")
        for what, number in (("the set", len(self.split)), ("global_batch_size", self.global_batch_size)):
            if number % self.shards:
                raise RecipeError(
                    f"{self.shards} shards cannot share {what} of {number} equally. "
                    f"Use a multiple of {self.shards}, such as {number - number % self.shards}."
                )
        self._set(shards=int(self.shards))

    def order(self, epoch: int) -> np.ndarray:
        """The examples of `epoch` in their order, as indices into the split, int64 [N].

        With shards, every global batch takes the same number from each shard, in the order of the shards.
        """
        if self.shards == 1:
            return super().order(epoch)
        share = self.global_batch_size // self.shards
        size = self._shard_size
        orders = [self.shard_order(epoch, shard) + shard * size for shard in range(self.shards)]
        return np.concatenate([order[first : first + share] for first in range(0, size, share) for order in orders])

    def shard_order(self, epoch: int, shard: int) -> np.ndarray:
        """The examples of one shard in the order of `epoch`, as indices into that shard, int64 [N / shards]."""
        return order_of(self._shard_size, shuffle=self.shuffle, key=[self.seed, epoch, shard])

    def rows_to_make(self, first: Any, end: Any, size: Any) -> RowsToMake:
        """Return which rows of a batch must be gathered, without those of other replicas' shards. See
        `PreparedRecipe`."""
        return super().rows_to_make(first, end, size) if self.shards == 1 else RowsToMake(first, end, first, end, size)

    @functools.cached_property
    def rows(self) -> Any:
        """How the rows of each of the split's arrays are kept: a nest of `Rows`."""
        return tf.nest.map_structure(Rows.of, self.split.as_element())

    def place(self, strategy: tf.distribute.Strategy) -> list[Any]:
        """Return the set (or each replica's shard of it) on every local device of the strategy; copied once.

        Its arrays are kept as `rows` says: `Rows.take` gathers from them.

        Raises:
            RecipeError: there are not as many shards as replicas.
            DataError: the set does not fit into a device's memory.
        """
        replicas = strategy.num_replicas_in_sync
        if self.shards not in (1, replicas):
            raise RecipeError(
                f"resident(shards={self.shards}) was asked for, but the strategy has {replicas} replicas. "
                f"Use shards={replicas}, or leave it out: every device then holds the whole set."
            )
        if strategy not in self._placed:
            devices = replica_devices(strategy)
            first = worker_index(strategy) * len(devices)  # of this worker's replicas
            self._placed[strategy] = [self._copy(device, first + i) for i, device in enumerate(devices)]
        return self._placed[strategy]

    def _copy(self, device: str, replica: int) -> Any:
        first = replica * self._shard_size if self.shards > 1 else 0
        part = slice(first, first + self._shard_size)
        element = tf.nest.map_structure(lambda array: array[part], self.split.as_element())

        def copy(rows: Rows, array: np.ndarray, whole: tf.Tensor) -> tf.Tensor:
            with tf.device(HOST if rows.on_host else device):
                if rows.on_host:  # one copy for all replicas
                    return whole if self.shards == 1 else whole[part]
                return tf.identity(tf.constant(rows.pack(array)))

        try:
            with tf.init_scope():
                return tf.nest.map_structure(copy, self.rows, element, self.host_tensors)
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError, MemoryError) as error:
            size = sum(array.nbytes for array in tf.nest.flatten(element)) / 2**20
            raise DataError(
                f"The set needs {size:,.0f} MiB on {device}, which does not have that much left: {str(error)[:200]}. "
                "Use shards=strategy.num_replicas_in_sync, so that each device holds its part, or mk.data.batches."
            ) from error

    @property
    def _shard_size(self) -> int:
        return self.num_examples // self.shards

    @property
    def _as_written(self) -> bool:
        return not self.shuffle and self.shards == 1


resident = Resident
