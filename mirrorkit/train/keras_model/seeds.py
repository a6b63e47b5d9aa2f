"""Random numbers by replica: from one state of a seed, each replica draws its own.

The state of a `keras.random.SeedGenerator` is equal on all replicas, and must stay so. Without more, every replica
would draw the same noise and drop the same units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit._types import TensorLike, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.variables import native


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
    replica context. A `tf.function` draws by replica if it is traced within the block. Whatever trains in a
    `mk.train.Loop` does this automatically.

    Raises:
        StepError: it was called outside of a replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise StepError("seeds_by_replica was called outside of a replica. Call it in `compute`, or in strategy.run.")
    # What is around it may tell replicas apart.
    with ambient.set(numbers=ambient.numbers or (lambda: [context.replica_id_in_sync_group])):
        yield


@contextmanager
def all_drawing_by_replica(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Within the block, replicas of this strategy draw their own numbers, each in a thread that TensorFlow starts."""
    ambient.drawing.append(strategy)
    try:
        with ambient.set():  # which lets Keras's functions be replaced
            yield
    finally:
        ambient.drawing.remove(strategy)


@replaces("SeedGenerator.next", within="numbers seeds_on_host draws replica")
def _next_of_replica(original: Callable[..., tf.Tensor], *args: object, **options: object) -> tf.Tensor:
    numbers = ambient.numbers or (lambda: ambient.replica)
    with tf.device(HOST) if ambient.seeds_on_host else contextlib.nullcontext():
        seed = fold(original(*args, **options), *numbers())
        if ambient.seeds_on_host:  # in int32, which TensorFlow keeps there, as Keras makes it (for XLA) before it draws
            seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
    if ambient.draws is not None:
        ambient.draws.seeds.append(seed)
    return seed
