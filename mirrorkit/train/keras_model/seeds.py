"""Random numbers by replica: from one state of a seed, each replica draws its own.

The state of a `keras.random.SeedGenerator` is equal on all replicas, and must stay so. Without more, every replica
would draw the same noise and drop the same units.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import TensorLike, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.thread_local import ThreadLocal
from mirrorkit.variables import native

_within = ThreadLocal(numbers=None, on_host=False, noted=None)


def fold(seed: tf.Tensor, *numbers: TensorLike) -> tf.Tensor:
    """Return the seed of one place, which these numbers name, from a seed that is the same for all places."""
    for number in numbers:
        seed = tf.cast(tf.random.experimental.stateless_fold_in(seed, number), seed.dtype)
    return seed


def number_among(seed: Variable, trained: Sequence[Variable]) -> int:
    """Return the number of a step among those that draw from one seed and train different variables.

    Each half of a GAN counts its own updates, so both come to the same number of a step.
    """
    variable, key = native(seed), tuple(id(native(one)) for one in trained)
    known: list[tuple[int, ...]] = getattr(variable, "_mirrorkit_drawn_by", [])
    known = known if key in known else [*known, key]
    variable._mirrorkit_drawn_by = known
    return known.index(key)


@contextmanager
def seeds_by_replica() -> Iterator[None]:
    """Let Keras's random layers and `SeedGenerator`s draw different numbers on each replica, in a step of your own.

    ```python
    def compute(self, batch):
        with mk.train.seeds_by_replica():
            outputs = self.model(batch, training=True)   # Dropout: another mask on each replica
    ```

    The generators' states stay equal on all replicas, so checkpoints and `mk.checks.in_sync` work as usual. Call it in
    replica context. A `tf.function` draws by replica if it is traced within the block. `mk.train.Step` does this
    automatically.

    Raises:
        StepError: it was called outside of a replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise StepError("seeds_by_replica was called outside of a replica. Call it in `compute`, or in strategy.run.")
    if _within.numbers is not None:  # what is around it tells replicas apart
        yield
        return
    with draws_at(lambda: [context.replica_id_in_sync_group]):
        yield


def draws_at(numbers: Callable[[], Sequence[TensorLike]]) -> AbstractContextManager[None]:
    """Fold these numbers into each seed that a `SeedGenerator` gives; without a draw they are never asked for."""
    _wrap_next()
    return _within.set(numbers=numbers)


def seeds_on_host() -> AbstractContextManager[None]:
    """Let Keras's random layers prepare their seeds on the host, where TensorFlow's random operations want them.

    Keras prepares them on the device, and on a GPU every draw then begins with a wait for all the work before it.
    """
    _wrap_next()
    return _within.set(on_host=True)


def noting_seeds(seeds: list[tf.Tensor]) -> AbstractContextManager[None]:
    """Add to `seeds` each that a `SeedGenerator` gives within the block."""
    _wrap_next()
    return _within.set(noted=seeds)


@functools.cache
def _wrap_next() -> None:
    """Have `SeedGenerator.next` do what the blocks above say; outside of them it is as it was."""

    def next_of_replica(original: Callable[..., tf.Tensor], *args: object, **options: object) -> tf.Tensor:
        numbers = _within.numbers or tuple
        with tf.device(HOST) if _within.on_host else contextlib.nullcontext():
            seed = fold(original(*args, **options), *numbers())
            if _within.on_host:  # in int32, which TensorFlow keeps there, as Keras makes it (for XLA) before it draws
                seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
        if _within.noted is not None:
            _within.noted.append(seed)
        return seed

    private.replace("SeedGenerator.next", next_of_replica)
