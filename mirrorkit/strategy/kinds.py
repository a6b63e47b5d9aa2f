"""What kind a strategy is, for the few places where kinds differ."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit.strategy.parameter_server import is_parameter_server
from mirrorkit.strategy.tpu import is_tpu
from mirrorkit.strategy.workers import num_workers


def class_name(strategy: tf.distribute.Strategy) -> str:
    """Return the public name of a strategy's class."""
    # TensorFlow's own name for this class is CollectiveAllReduceStrategy.
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return "MultiWorkerMirroredStrategy" if is_multi_worker else type(strategy).__name__.lstrip("_")


def is_central_storage(strategy: tf.distribute.Strategy) -> bool:
    """Return whether all replicas share one copy of each variable, which is written outside of them."""
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def has_copies(strategy: tf.distribute.Strategy) -> bool:
    """Return whether each replica has a copy of each variable that it can write by itself."""
    return not is_central_storage(strategy) and not is_parameter_server(strategy)


def is_on_own_devices(strategy: tf.distribute.Strategy) -> bool:
    """Return whether all replicas, each with its copies, are CPU or GPU devices of this process."""
    return has_copies(strategy) and not is_tpu(strategy) and num_workers(strategy) == 1
