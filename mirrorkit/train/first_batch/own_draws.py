"""Whether the replicas of a user's own step draw random numbers of their own."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.errors import StepError
from mirrorkit.strategy import num_workers, of_all_workers
from mirrorkit.train.step.custom import Custom
from mirrorkit.train.step.global_batch import HostBatch
from mirrorkit.variables import unchanged

_DRAW = "StatelessRandomGetKeyCounter"  # with which TensorFlow's stateless random operations, and so Keras's, begin


def require_own_draws(step: Custom, batch: Batch) -> None:
    """Refuse a step of the user's own whose random operations begin from the same seed on two replicas.

    The step is traced, and of the graph no more is run than what the seeds follow from. Seen are operations of the
    graph itself, not those within a `tf.function` or a loop that the step calls, and no constant seeds. The step's
    variables are left as they were.
    """
    flat = tf.nest.flatten(batch)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]

    def train(*parts: tf.Tensor) -> Nest:
        return step.train_logs(HostBatch(tf.nest.pack_sequence_as(batch, parts)))

    traced = tf.compat.v1.wrap_function(train, specs)
    draws: dict[int, list[tf.Operation]] = {}  # by replica
    for op in traced.graph.get_operations():
        if op.type == _DRAW:
            draws.setdefault(_replica_of(op.name), []).append(op)
    own, others = ([op for op in draws.get(replica, []) if _is_drawn(op, draws[replica])] for replica in (0, 1))
    seeds = traced.prune(traced.inputs[: len(flat)], [op.inputs[0] for op in (*own, *others)])
    with unchanged(step.variables) as snapshot:
        snapshot.add_captured(seeds)
        numbers = [float(zlib.crc32(np.asarray(seed).tobytes())) for seed in seeds(*flat)]
    if num_workers(step.strategy) > 1:  # all come to the same answer: the seeds of the first two workers
        by_worker = [of_all_workers(step.strategy, number)[:2] for number in numbers[: len(own)]]
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
