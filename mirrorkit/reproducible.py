"""Reproducible mode: one call, and two runs of a program give the same bits.

```python
import mirrorkit as mk

mk.reproducible.enable(seed=0)  # before the first strategy, model or dataset
```
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import ArgumentError
from mirrorkit.whole import is_whole

__all__ = ["enable"]


def enable(seed: int = 0) -> None:
    """Seed Python, NumPy, TensorFlow and Keras, and turn on TensorFlow's op determinism.

    From now on two runs of the same program, with the same versions on the same kind of machine and the same number
    of replicas, give equal bits. It stays on until the process ends. It costs speed where TensorFlow uses a slower
    operation, and where tf.data may no longer run random functions in parallel (mirrorkit's own augmentations are
    stateless and stay parallel). An operation that has no deterministic form raises an error that names it.

    Two things are beyond its reach: the order of Python's sets of strings, which $PYTHONHASHSEED fixes before Python
    starts, and random numbers that other libraries draw.

    Source: https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_op_determinism and
    https://keras.io/api/utils/python_utils/#set_random_seed-function

    Args:
        seed: a whole number from 0 to 2**32 - 1.

    Raises:
        ArgumentError: another seed.

    Warns:
        UserWarning: weights or datasets exist already, which it cannot change.
    """
    if not is_whole(seed, 0) or seed >= 2**32:
        raise ArgumentError(f"seed must be a whole number from 0 to 2**32 - 1, found {seed!r}.")
    late = _made_already()
    keras.utils.set_random_seed(int(seed))
    tf.config.experimental.enable_op_determinism()
    if late:
        warnings.warn(
            f"Reproducible mode was asked for after {late} were made. Those were drawn without this seed, and "
            "functions traced before stay as they are. Call mk.reproducible.enable() at the top of the program.",
            stacklevel=2,
        )


def _made_already() -> str:
    """Name what was made before the seed was set; TensorFlow itself keeps no list of it."""
    kinds: dict[str, Any] = {"variables": keras.Variable, "datasets": tf.data.Dataset}
    # `type`, because `isinstance` would load the lazily loading modules among all the objects
    types = [type(thing) for thing in gc.get_objects()]
    counts = {name: sum(issubclass(found, kind) for found in types) for name, kind in kinds.items()}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)
