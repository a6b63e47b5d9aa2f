"""The replicas of this process: which one is running, and the values that they return."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def local_replica(strategy: tf.distribute.Strategy) -> int:
    """Return which of this worker's replicas is running; call it in replica context."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(replica)) % len(strategy.extended.worker_devices)


def first_replica(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Take the first replica's part of each value in a nest that `strategy.run` returned."""
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)
