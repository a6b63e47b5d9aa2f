"""Reproducible mode: after one call, two runs of a program give bit-identical results.

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
from mirrorkit.arguments import whole_number
from mirrorkit.errors import ArgumentError

__all__ = ["enable"]

_enabled = False


def enable(seed: int = 0) -> None:
    """Seed Python, NumPy, TensorFlow and Keras, and turn on TensorFlow's op determinism.

    ```python
    mk.reproducible.enable(seed=0)   # at the top of the program
    ```

    After this call, two runs of the same program, with the same versions on the same kind of machine and the same
    number of replicas, give bit-identical results. The mode stays on until the process ends. It costs speed where
    TensorFlow uses a slower operation, and where tf.data can no longer run random functions in parallel (mirrorkit's
    own augmentations are stateless and stay parallel). An operation without a deterministic implementation raises an
    error that names it.

    It does not control the order of Python's sets of strings, which $PYTHONHASHSEED fixes before Python starts, or
    random numbers that other libraries draw.

    Source: https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_op_determinism and
    https://keras.io/api/utils/python_utils/#set_random_seed-function

    Args:
        seed: a whole number from 0 to 2**32 - 1.

    Raises:
        ArgumentError: `seed` is out of range or not a whole number.

    Warns:
        UserWarning: weights or datasets already exist, which it cannot change.
    """
    whole_number("seed", seed, ArgumentError, least=0, most=2**32 - 1)
    global _enabled
    late = _made_already()
    _enabled = True
    keras.utils.set_random_seed(int(seed))
    tf.config.experimental.enable_op_determinism()
    if late:
        warnings.warn(
            f"Reproducible mode was enabled after {late} were created. They do not use this seed, and "
            "functions that are already traced do not change. Call mk.reproducible.enable() at the top of the program.",
            stacklevel=2,
        )


def is_enabled() -> bool:
    """Return whether this process is in reproducible mode; for mirrorkit's own use."""
    return _enabled


def _made_already() -> str:
    """Name what was created before the seed was set; TensorFlow itself keeps no list of it."""
    kinds: dict[str, Any] = {"variables": keras.Variable, "datasets": tf.data.Dataset}
    # `type`, because `isinstance` would load the lazily loading modules among all the objects
    types = [type(thing) for thing in gc.get_objects()]
    counts = {name: sum(issubclass(found, kind) for found in types) for name, kind in kinds.items()}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)
