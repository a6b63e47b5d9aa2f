"""A set kept on the devices: gathered and augmented there, so that a step needs only the indices of its rows."""

from __future__ import annotations

import functools
import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.in_memory import Batches
from mirrorkit.data.stored_array import StoredArray
from mirrorkit.errors import DataError
from mirrorkit.strategy import replica_devices


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
    With `one_hot`, a label that `map` puts outside the classes gives a row of NaN, where `batches` raises an error.

    Args:
        split: from `mk.data.load`, `mk.data.synthetic` or `mk.data.arrays`.
        global_batch_size, shuffle, seed, augment, map, one_hot, drop_remainder: as in `batches`.
        weights, replacement, examples_per_epoch: as in `batches`.

    Raises:
        RecipeError: what `batches` refuses.
        DataError: in `Loop`: the set does not fit into a device's memory.
    """

    cache: bool = field(init=False, default=False)
    prefetch: int = field(init=False, default=tf.data.AUTOTUNE)
    _placed: Any = field(init=False, default_factory=weakref.WeakKeyDictionary, repr=False)

    @functools.cached_property
    def rows(self) -> Any:
        """How the rows of each of the split's arrays are kept: a nest of `StoredArray`."""
        return tf.nest.map_structure(StoredArray.of, self.split.as_element())

    def place(self, strategy: tf.distribute.Strategy) -> list[Any]:
        """Return the set on every local device of the strategy; copied once.

        Its arrays are kept as `rows` says: `StoredArray.take` gathers from them.

        Raises:
            DataError: the set does not fit into a device's memory.
        """
        if strategy not in self._placed:
            self._placed[strategy] = [self._copy(device) for device in replica_devices(strategy)]
        return self._placed[strategy]

    def _checked_classes(self, hot: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self.map is None:
            return hot
        # Compiled code on a device raises nothing: the row becomes NaN, and so does the loss.
        return tf.where(tf.reduce_any(hot > 0, axis=-1, keepdims=True), hot, math.nan)

    def _copy(self, device: str) -> Any:
        element = self.split.as_element()

        def copy(rows: StoredArray, array: np.ndarray, whole: tf.Tensor) -> tf.Tensor:
            if rows.on_host:  # one copy for all replicas
                return whole
            with tf.device(device):
                return tf.identity(tf.constant(rows.pack(array)))

        try:
            with tf.init_scope():
                return tf.nest.map_structure(copy, self.rows, element, self.host_tensors)
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError, MemoryError) as error:
            size = sum(array.nbytes for array in tf.nest.flatten(element)) / 2**20
            raise DataError(
                f"The set needs {size:,.0f} MiB on {device}, which does not have that much left: {str(error)[:200]}. "
                "Use mk.data.batches."
            ) from error


resident = Resident
