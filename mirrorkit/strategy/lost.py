"""Name the worker that was lost, where TensorFlow only says that a socket was closed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit.cluster import task_name, unreachable
from mirrorkit.errors import ClusterError
from mirrorkit.strategy.workers import addresses, worker_name

# How a collective operation ends when another worker is gone, has been silent for 10 s, or had an error in NCCL.
ENDED_BY_OTHERS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
)
_SECONDS_TO_EXIT = 5.0  # a process that exits closes its port some time after its connections
# What TensorFlow's error says before it lists tasks as "/job:worker/replica:0/task:1"; they are nowhere else.
_SILENT = "stopped sending heartbeats"


@contextmanager
def naming_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turn the error of a collective operation into one that names the lost workers; for a custom training loop.

    ```python
    with mk.strategy.naming_lost_workers(strategy):
        for batch in dataset:
            train_step(batch)
    ```

    `mk.train.Loop` does this itself. With one worker, and for other errors, this does nothing.

    Raises:
        ClusterError: another worker is gone; the program can only be started again.
    """
    try:
        yield
    except ENDED_BY_OTHERS as error:
        name_lost_workers(strategy, error)
        raise


def name_lost_workers(strategy: tf.distribute.Strategy, error: Exception) -> None:
    """Raise a `ClusterError` if `error` comes from a worker that is gone; otherwise return."""
    others = {task: address for task, address in addresses(strategy).items() if task != worker_name(strategy)}
    if not others:
        return
    deadline = time.monotonic() + _SECONDS_TO_EXIT
    while not (gone := unreachable(others)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if gone:  # of a closed connection TensorFlow says no more, in 70 lines
        what, cause = "is gone", None if isinstance(error, tf.errors.UnavailableError) else error
    else:
        what, cause = "has stopped answering", error
        gone = [task for task in _unhealthy(str(error)) if task in others]
        if isinstance(error, (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)):
            gone = gone or list(others)
    if not gone:
        return
    named = " or ".join(f"{task} ({others[task]})" for task in gone)
    raise ClusterError(
        f"{named} {what}, and the other workers cannot go on without it. Its own output says why it ended. Start all "
        "workers again; with the callback mk.train.Checkpoints they go on from the newest checkpoint."
    ) from cause


def _unhealthy(message: str) -> list[str]:
    """Return the tasks that TensorFlow says have stopped sending heartbeats."""
    _, _, listed = message.partition(_SILENT)
    return [task_name(job, int(index)) for job, index in re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", listed)]
