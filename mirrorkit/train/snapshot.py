"""Remember and put back everything that a rehearsal changes: variables on every replica, and the random generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.train.reduce.update import native


@contextmanager
def unchanged(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> Iterator[None]:
    """Run the block, then restore `variables` (each replica's copy) and the random generators bit for bit.

    The generators are Python's, NumPy's and TensorFlow's global ones.
    """
    copies = [copy for v in variables for copy in strategy.experimental_local_results(native(v))]
    values = [tf.identity(copy) for copy in copies]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    generator = _global_generator()
    generator_state = None if generator is None else tf.identity(generator.state)
    try:
        yield
    finally:
        for copy, value in zip(copies, values, strict=True):
            copy.assign(value)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if generator is not None:
            generator.state.assign(generator_state)


def _global_generator() -> Any:
    try:
        return tf.random.get_global_generator()
    except RuntimeError:  # with op determinism on there is none until the user sets one
        return None
