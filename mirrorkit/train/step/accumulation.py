"""Gradient accumulation: several global batches for one update, by nothing but more shards.

The sums of `k` successive batches are added up on each replica before the one reduction, so the update is that of one
batch `k` times as large, cut into `k` times as many shards.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.strategy import local_replica, replica_devices
from mirrorkit.train.reduce.tracing import outside_replica


class RunningSums:
    """Sums that each replica of this worker adds up over the parts of an update.

    They are plain variables on the replicas' devices, made when the sums are first seen, and part of no checkpoint: the
    first part of an update overwrites them.

    Args:
        strategy: whose replicas they are.
        devices: for a replica of this worker by its number a nest like the sums that says where each lies.
    """

    def __init__(self, strategy: tf.distribute.Strategy, devices: Callable[[int], Nest]) -> None:
        self._strategy = strategy
        self._devices = devices
        self._like: Nest = None
        self.variables: list[list[tf.Variable]] = []  # of each replica of this worker; none before sums were seen

    def add(self, sums: Nest, part: int) -> None:
        """Add a nest of float tensors of static shape, or begin with it where `part` is 0; in replica context."""
        values = tf.nest.flatten(sums)
        if not self.variables:
            self._like = tf.nest.map_structure(lambda _: None, sums)
            outside_replica(lambda: self._create(values))
        for variable, value in zip(self.variables[local_replica(self._strategy)], values, strict=True):
            write = variable.assign if part == 0 else variable.assign_add
            write(value)

    def read(self) -> Nest:
        """Return what this replica has added up, as one nest; in replica context."""
        return tf.nest.pack_sequence_as(
            self._like, [tf.convert_to_tensor(v) for v in self.variables[local_replica(self._strategy)]]
        )

    def _create(self, like: list[tf.Tensor]) -> None:
        for replica in range(len(replica_devices(self._strategy))):
            own = []
            for value, device in zip(like, tf.nest.flatten(self._devices(replica)), strict=True):
                with tf.device(device):
                    own.append(tf.Variable(tf.zeros(value.shape, value.dtype), trainable=False))
            self.variables.append(own)
