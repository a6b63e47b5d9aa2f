"""Gradient accumulation: several global batches for one update, by nothing but more shards.

The sums of `k` successive batches are added up on each replica before the one reduction, so the update is that of one
batch `k` times as large, cut into `k` times as many shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
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

    def add(self, sums: Nest, part: int | tf.Tensor) -> None:
        """Add a nest of float tensors of static shape, or begin with it where `part` is 0; in replica context."""
        values = tf.nest.flatten(sums)
        if not self.variables:
            self._like = tf.nest.map_structure(lambda _: None, sums)
            outside_replica(lambda: self._create([tf.TensorSpec(value.shape, value.dtype) for value in values]))
        variables = self.variables[local_replica(self._strategy)]

        def write(name: str) -> tf.Operation:
            return tf.group(*[getattr(v, name)(value).op for v, value in zip(variables, values, strict=True)])

        begin, go_on = (functools.partial(write, name) for name in ("assign", "assign_add"))
        first = tf.get_static_value(part)
        if first is None:
            with tf.device(HOST):  # which decides; asking a GPU it would wait for all that this has to do
                is_first = tf.equal(part, 0)
            tf.cond(is_first, begin, go_on)
        elif first == 0:
            begin()
        else:
            go_on()

    def read(self) -> Nest:
        """Return what this replica has added up, as one nest; in replica context."""
        if not self.variables:
            raise StepError("There are no sums to finish. Call step.add(batch, part) first, with part 0.")
        return tf.nest.pack_sequence_as(
            self._like, [tf.convert_to_tensor(v) for v in self.variables[local_replica(self._strategy)]]
        )

    def _create(self, specs: list[tf.TensorSpec]) -> None:
        for replica in range(len(replica_devices(self._strategy))):
            devices = tf.nest.flatten(self._devices(replica))
            self.variables.append([_zeros(spec, device) for spec, device in zip(specs, devices, strict=True)])


def _zeros(spec: tf.TensorSpec, device: str) -> tf.Variable:
    with tf.device(device):
        return tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=False)
