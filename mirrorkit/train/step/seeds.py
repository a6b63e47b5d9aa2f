"""Random numbers by replica: from one state of a seed, each replica draws its own.

The state of a `keras.random.SeedGenerator` is equal on all replicas, and must stay so. Without more, every replica
would draw the same noise and drop the same units.
"""

from __future__ import annotations

import functools
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest, Sums, TensorLike
from mirrorkit.data.rows import HOST
from mirrorkit.errors import StepError
from mirrorkit.strategy import num_workers, of_all_workers
from mirrorkit.train.step.share import own_share
from mirrorkit.variables import unchanged

_DRAW = "StatelessRandomGetKeyCounter"  # with which TensorFlow's stateless random operations, and so Keras's, begin
_within = threading.local()  # a strategy runs each replica in a thread of its own


def fold(seed: tf.Tensor, shard: TensorLike) -> tf.Tensor:
    """Return the seed of one shard (int32 scalar), from a seed that is the same for all."""
    return tf.cast(tf.random.experimental.stateless_fold_in(seed, shard), seed.dtype)


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
    _wrap_next()
    before = getattr(_within, "replica", None)
    _within.replica = context.replica_id_in_sync_group
    try:
        yield
    finally:
        _within.replica = before


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
        if getattr(_within, "on_host", False):
            with tf.device(HOST):
                # In int32, which TensorFlow keeps there, as Keras makes it (for XLA) before it draws.
                return tf.cast(tf.math.floormod(original(self, *args, **options), tf.int32.max - 1), tf.int32)
        seed, replica = original(self, *args, **options), getattr(_within, "replica", None)
        return seed if replica is None else fold(seed, replica)

    keras.random.SeedGenerator.next = next_of_replica


class _Computes(Protocol):
    def compute(self, batch: Nest, /) -> Sums: ...


def require_own_draws(strategy: tf.distribute.Strategy, step: _Computes, batch: Nest) -> None:
    """Refuse a step of the user's own whose random operations begin from the same seed on two replicas.

    Seen are operations of its graph itself, not those within a `tf.function` or a loop that it calls, and no constant
    seeds. All variables are left as they were.

    Args:
        strategy: of several replicas.
        step: its `compute` is called on each replica.
        batch: a global batch.

    Raises:
        StepError: it names the operations.
    """
    names: list[str] = []

    def on_replica(batch: Nest) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        known = {op.name for op in graph.get_operations()}
        with keras.StatelessScope(initialize_variables=False):
            step.compute(own_share(batch))
        # TensorFlow traces replicas in turns, and names the operations of all but the first by their replica.
        here = _replica_of(f"{graph.get_name_scope()}/")
        new = [op for op in graph.get_operations() if op.type == _DRAW and op.name not in known]
        own = {op: _before(op.inputs[0].op) for op in new if _replica_of(op.name) == here}
        seeds_of_seeds = set().union(*own.values())
        draws = [op for op, before in own.items() if _is_drawn(before) and op not in seeds_of_seeds]
        if not names:
            names.extend(op.name.rpartition("/")[0] for op in draws)
        return [tf.identity(op.inputs[0]) for op in draws]

    function = tf.function(lambda batch: strategy.run(on_replica, args=(batch,)), autograph=False)
    with unchanged(getattr(step, "variables", [])) as snapshot:
        snapshot.add_captured(function.get_concrete_function(batch))
        seeds = function(batch)
    equal = [name for name, seed in zip(names, seeds, strict=True) if _is_shared(strategy, seed)]
    if equal:
        raise StepError(
            "Replicas would draw the same random numbers, since the state of a SeedGenerator is equal on all of them: "
            f"{', '.join(equal)}. In compute, call the model within `with mk.train.seeds_by_replica():`. If they are "
            'to draw the same, give the step an attribute unchecked = ("seeds",).'
        )


def _replica_of(name: str) -> str:
    """Return the replica's part of an operation's name; the first replica has none."""
    found = re.search(r"(?:^|/)(replica_\d+)/", name)
    return found[1] if found else ""


def _before(last: tf.Operation) -> set[tf.Operation]:
    """Return an operation and all that it follows from."""
    found, open_ = {last}, [last]
    while open_:
        new = {tensor.op for tensor in open_.pop().inputs} - found
        found |= new
        open_ += new
    return found


def _is_drawn(before: set[tf.Operation]) -> bool:
    """Whether a seed comes from a variable, and not from a constant that is meant to be the same everywhere."""
    return any(op.type in ("Placeholder", "ReadVariableOp") for op in before)


def _is_shared(strategy: tf.distribute.Strategy, seed: Nest) -> bool:
    """Whether the first two replicas have the same seed, on several workers the first two workers."""
    numbers = [float(zlib.crc32(np.asarray(copy).tobytes())) for copy in strategy.experimental_local_results(seed)]
    first, second, *_ = of_all_workers(strategy, numbers[0]) if num_workers(strategy) > 1 else numbers
    return first == second
