"""Random numbers by replica: from one state of a seed, each replica draws its own.

The state of a `keras.random.SeedGenerator` is equal on all replicas, and must stay so. Without more, every replica
would draw the same noise and drop the same units.
"""

from __future__ import annotations

import functools
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, Nest, TensorLike, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.strategy import num_workers, of_all_workers
from mirrorkit.variables import native, unchanged

_DRAW = "StatelessRandomGetKeyCounter"  # with which TensorFlow's stateless random operations, and so Keras's, begin
_within = threading.local()  # a strategy runs each replica in a thread of its own


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
    """Let Keras's random layers and `SeedGenerator`s draw other numbers on each replica, in a step of your own.

    ```python
    def compute(self, batch):
        with mk.train.seeds_by_replica():
            outputs = self.model(batch, training=True)   # Dropout: another mask on each replica
    ```

    The generators' states stay equal on all replicas, so checkpoints and `mk.checks.in_sync` are as without. Call it in
    replica context. A `tf.function` draws by replica where it is traced within the block. `mk.train.Step` does the same
    by itself.

    Raises:
        StepError: it was called outside of a replica.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise StepError("seeds_by_replica was called outside of a replica. Call it in `compute`, or in strategy.run.")
    if getattr(_within, "numbers", None) is not None:  # what is around it tells replicas apart
        yield
        return
    with draws_at(lambda: [context.replica_id_in_sync_group]):
        yield


@contextmanager
def draws_at(numbers: Callable[[], Sequence[TensorLike]]) -> Iterator[None]:
    """Fold these numbers into each seed that a `SeedGenerator` gives; without a draw they are never asked for."""
    _wrap_next()
    before = getattr(_within, "numbers", None)
    _within.numbers = numbers
    try:
        yield
    finally:
        _within.numbers = before


@contextmanager
def seeds_on_host() -> Iterator[None]:
    """Let Keras's random layers prepare their seeds on the host, where TensorFlow's random operations want them.

    Keras prepares them on the device, and on a GPU every draw then begins with a wait for all the work before it.
    """
    _wrap_next()
    before = getattr(_within, "on_host", False)
    _within.on_host = True
    try:
        yield
    finally:
        _within.on_host = before


@functools.cache
def _wrap_next() -> None:
    """Have `SeedGenerator.next` do what the two blocks above say; outside of them it is as it was."""
    original = keras.random.SeedGenerator.next

    @functools.wraps(original)
    def next_of_replica(self: object, *args: object, **options: object) -> tf.Tensor:
        numbers = getattr(_within, "numbers", None) or (lambda: ())
        if getattr(_within, "on_host", False):
            with tf.device(HOST):
                seed = fold(original(self, *args, **options), *numbers())
                # In int32, which TensorFlow keeps there, as Keras makes it (for XLA) before it draws.
                return tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
        return fold(original(self, *args, **options), *numbers())

    keras.random.SeedGenerator.next = next_of_replica


def require_own_draws(
    strategy: tf.distribute.Strategy, train: Callable[[Batch], Nest], variables: Sequence[Variable], batch: Batch
) -> None:
    """Refuse a step of the user's own whose random operations begin from the same seed on two replicas.

    The step is traced, and of the graph no more is run than what the seeds follow from. Seen are operations of the
    graph itself, not those within a `tf.function` or a loop that the step calls, and no constant seeds.

    `train` makes a training step on a global batch, in cross-replica context; `variables` are left as they were.
    """
    flat = tf.nest.flatten(batch)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]
    traced = tf.compat.v1.wrap_function(lambda *parts: train(tf.nest.pack_sequence_as(batch, parts)), specs)
    draws: dict[int, list[tf.Operation]] = {}  # by replica
    for op in traced.graph.get_operations():
        if op.type == _DRAW:
            draws.setdefault(_replica_of(op.name), []).append(op)
    own, others = ([op for op in draws.get(replica, []) if _is_drawn(op, draws[replica])] for replica in (0, 1))
    seeds = traced.prune(traced.inputs[: len(flat)], [op.inputs[0] for op in (*own, *others)])
    with unchanged(variables) as snapshot:
        snapshot.add_captured(seeds)
        numbers = [float(zlib.crc32(np.asarray(seed).tobytes())) for seed in seeds(*flat)]
    if num_workers(strategy) > 1:  # all come to the same answer: the seeds of the first two workers
        by_worker = [of_all_workers(strategy, number)[:2] for number in numbers[: len(own)]]
        is_shared = [one == other for one, other in by_worker]
    else:
        is_shared = [number in numbers[len(own) :] for number in numbers[: len(own)]]
    equal = [op.name.rpartition("/")[0] for op, same in zip(own, is_shared, strict=True) if same]
    if equal:
        raise StepError(
            "Replicas would draw the same random numbers, since the state of a SeedGenerator is equal on all of them: "
            f"{', '.join(equal)}. In compute, call the model within `with mk.train.seeds_by_replica():`. If they are "
            'to draw the same, give the step an attribute unchecked = ("seeds",).'
        )


def _replica_of(name: str) -> int:
    """Return the replica of an operation by its name; TensorFlow puts that of all but the first into it."""
    found = re.search(r"(?:^|/)replica_(\d+)(?:_\d+)?/", name)
    return int(found[1]) if found else 0


def _before(last: tf.Operation) -> set[tf.Operation]:
    """Return an operation and all that it follows from."""
    found, open_ = {last}, [last]
    while open_:
        new = {tensor.op for tensor in open_.pop().inputs} - found
        found |= new
        open_ += new
    return found


def _is_drawn(draw: tf.Operation, all_of_replica: Sequence[tf.Operation]) -> bool:
    """Whether an operation's seed comes from a variable: not from a constant, nor for another draw's seed alone."""
    before = _before(draw.inputs[0].op)
    for_seeds = any(draw in _before(other.inputs[0].op) for other in all_of_replica if other is not draw)
    return not for_seeds and any(op.type in ("Placeholder", "ReadVariableOp") for op in before)
