"""A set held on the devices: gathered and augmented there, so that a step needs no more than the places of its rows."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.augment import Augmentation
from mirrorkit.data.batches import Batches, MapFunction, batches
from mirrorkit.data.rows import HOST, Rows
from mirrorkit.data.splits import Split
from mirrorkit.errors import DataError
from mirrorkit.strategy import worker_index
from mirrorkit.whole import is_whole


@dataclass(frozen=True, eq=False)
class Resident(Batches):
    """The recipe that `mk.data.resident` makes; see there. Its attributes are that function's arguments."""

    shards: int = 1
    _placed: Any = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    def order(self, epoch: int) -> np.ndarray:
        """The examples of `epoch` in the order in which they come, as indices into the split, int64 [N].

        With shards, every global batch takes the same number from each shard, in the order of the shards.
        """
        if self.shards == 1:
            return super().order(epoch)
        own = self.global_batch_size // self.shards
        size = self.num_examples // self.shards
        parts = [self.shard_order(epoch, shard) + shard * size for shard in range(self.shards)]
        pieces = [part[first : first + own] for first in range(0, size, own) for part in parts]
        return np.concatenate(pieces)

    @property
    def _as_written(self) -> bool:
        return not self.shuffle and self.shards == 1

    def shard_order(self, epoch: int, shard: int) -> np.ndarray:
        """The examples of one shard in the order of `epoch`, as indices into that shard, int64 [N / shards]."""
        size = self.num_examples // self.shards
        if not self.shuffle:
            return np.arange(size)
        return np.random.default_rng([self.seed, epoch, shard]).permutation(size)

    @functools.cached_property
    def rows(self) -> Any:
        """How the rows of each of the split's arrays are kept: a nest of `Rows`."""
        return tf.nest.map_structure(Rows.of, self.split.as_element())

    def place(self, strategy: tf.distribute.Strategy) -> list[Any]:
        """Return the set (or each replica's shard of it) on every local device of the strategy; copied once.

        Its arrays are kept as `rows` says: `Rows.take` gathers from them.

        Raises:
            DataError: it does not fit into a device's memory, or the shards are not as many as the replicas.
        """
        replicas = strategy.num_replicas_in_sync
        if self.shards not in (1, replicas):
            raise DataError(
                f"resident(shards={self.shards}) was asked for, but the strategy has {replicas} replicas. "
                f"Use shards={replicas}, or leave it out: every device then holds the whole set."
            )
        if strategy not in self._placed:
            devices = strategy.extended.worker_devices
            first = worker_index(strategy) * len(devices)  # of this worker's replicas
            self._placed[strategy] = [self._copy(device, first + i) for i, device in enumerate(devices)]
        return self._placed[strategy]

    def _copy(self, device: str, shard: int) -> Any:
        size = self.num_examples // self.shards
        first = shard * size if self.shards > 1 else 0
        element = tf.nest.map_structure(lambda array: array[first : first + size], self.split.as_element())

        def copy(rows: Rows, array: np.ndarray, whole: tf.Tensor) -> tf.Tensor:
            with tf.device(HOST if rows.on_host else device):
                if rows.on_host:  # one copy for all replicas
                    return whole if self.shards == 1 else whole[first : first + size]
                return tf.identity(tf.constant(rows.pack(array)))

        try:
            with tf.init_scope():
                return tf.nest.map_structure(copy, self.rows, element, self._tensors)
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError, MemoryError) as error:
            size = sum(array.nbytes for array in tf.nest.flatten(element)) / 2**20
            raise DataError(
                f"The set needs {size:,.0f} MiB on {device}, which has not that much left: {str(error)[:200]}. Use "
                "shards=strategy.num_replicas_in_sync, so that each device holds its part, or mk.data.batches."
            ) from error


def resident(
    split: Split,
    *,
    global_batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    augment: Sequence[Augmentation] | None = None,
    map: MapFunction | None = None,
    one_hot: bool = False,
    drop_remainder: bool = False,
    shards: int = 1,
) -> Resident:
    """A recipe, as `batches` makes it, whose examples `mk.train.Loop` keeps on the devices.

    ```python
    train = mk.data.resident(digits.train, global_batch_size=256, shuffle=True, seed=0)
    loop.fit(train, epochs=2)
    ```

    Every device holds the set, in as many bytes as the split has (rows of uint8 pixels fill up words of 8 bytes); only
    int32 arrays stay on the host, where TensorFlow keeps them for GPUs too. Order and batches are those of `batches`
    with the same seed, and so are the dtypes. `map` and `augment` run on the device, on each replica's own rows: on
    several replicas an augmentation draws other random numbers than `batches` does, different ones on every replica,
    and the same ones each time.

    Args:
        split: from `mk.data.load`, `mk.data.synthetic` or `mk.data.arrays`.
        global_batch_size, shuffle, seed, augment, map, one_hot, drop_remainder: as in `batches`.
        shards: 1, or the number of replicas: every replica then holds one part of the set, and draws from it alone.

    Raises:
        DataError: what `batches` refuses; shards that divide the set or the batch unevenly. In `Loop`: a set that
            does not fit into a device's memory.
    """
    whole = batches(
        split,
        global_batch_size=global_batch_size,
        shuffle=shuffle,
        seed=seed,
        augment=augment,
        map=map,
        one_hot=one_hot,
        drop_remainder=drop_remainder,
    )
    if not is_whole(shards):
        raise DataError(f"shards={shards!r} was asked for; it must be 1 or the number of replicas.")
    for what, number in (("the set", len(split)), ("global_batch_size", global_batch_size)):
        if number % shards:
            raise DataError(
                f"{shards} shards cannot share {what} of {number} equally. "
                f"Use a multiple of {shards}, such as {number - number % shards}."
            )
    arguments = {name: getattr(whole, name) for name in Batches.__dataclass_fields__}
    return Resident(**arguments, shards=int(shards))
