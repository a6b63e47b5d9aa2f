"""Places at which the workers of a strategy wait for each other, or for their chief."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import ArgumentError, FileError
from mirrorkit.strategy.exchange import of_all_workers, place

_log = logging.getLogger("mirrorkit")

PATIENCE = 60.0  # seconds before the log says what is being waited for


@checks_arguments(ArgumentError)
def wait_for_all(strategy: tf.distribute.Strategy, name: str) -> None:
    """Wait until every worker has reached the barrier of this name; under a strategy of one process, return at once.

    ```python
    if mk.strategy.is_chief(strategy):
        prepare("frames")                                  # for all workers
    mk.strategy.wait_for_all(strategy, "frames are there")
    ```

    Collective: every worker must call it, in the same order relative to other collective calls. After a minute the log
    says what a worker is waiting for.

    Args:
        strategy: the strategy of the workers.
        name: what they wait for; the same on all of them.

    Raises:
        ClusterError: workers that wait elsewhere, such as at a barrier of another name, or a worker that is gone.
    """
    barrier = f"the barrier {name!r}"
    with saying_what_is_missing(f"at {barrier}"), place(barrier):
        of_all_workers(strategy, 0)


@contextmanager
def waiting_for_the_chief(strategy: tf.distribute.Strategy, to: str) -> Iterator[None]:
    """Wait on every worker until the chief has left the block; where it fails, all do. Collective.

    Args:
        strategy: the strategy of the workers.
        to: what the chief does in the block, for messages: "export 'm.keras'".
    """
    failed = True
    try:
        yield
        failed = False
    finally:
        with saying_what_is_missing(f"to {to}"), place("a wait for the chief"):
            chief_failed = bool(of_all_workers(strategy, failed)[0])
    if chief_failed:
        raise FileError(f"The chief could not {to}: its own error says why.")


@contextmanager
def saying_what_is_missing(where: str) -> Iterator[None]:
    """Log that this worker waits for others, once it has waited for a minute."""
    waiting = threading.Timer(
        PATIENCE,
        _log.warning,
        (
            f"Waiting for the other workers {where}, for {PATIENCE:.0f} s so far. Every worker must make this call, "
            "the chief too. Is one of them still busy, or does its code leave the call out?",
        ),
    )
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
