"""Several replicas on one CPU, to test that N replicas give the same result as one."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit import strategy


def virtual_replicas(n: int, *, kind: str = "mirrored") -> tf.distribute.Strategy:
    """Return a strategy with `n` replicas on virtual CPU devices; split the CPU if TensorFlow has not started.

    Call it at the top of the program with the largest number that it needs; a later call with fewer takes the first.

    Raises:
        DeviceError: TensorFlow has already started with fewer CPU devices.
        StrategyError: an unknown kind, or one that cannot have `n` replicas.
    """
    return strategy.create(kind, devices=f"cpu:{n}")
