"""The user's code is one replica's: its results for a share of the batch are combined by the step, and by nobody else.

TensorFlow's guide divides a loss by the number of replicas, since there the gradients are added up afterwards. A step
averages them over the rows, so its replicas would divide twice.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.errors import StepError
from mirrorkit.thread_local import ThreadLocal

_log = logging.getLogger("mirrorkit")
_within = ThreadLocal(alone=False, summaries=None)


@contextmanager
def one_replica(alone: bool = True, summaries: Callable[[], None] | None = None) -> Iterator[None]:
    """Let the number of replicas be 1 within the block, and refuse to reduce; with `alone=False` not, within that.

    `summaries` is called where the block is to write one, in a thread that has no writer; by default this warns once.
    """
    _wrap()
    with _within.set(alone=alone, summaries=summaries):
        yield


@functools.cache
def _wrap() -> None:
    """Have TensorFlow do what the block above says; outside of it it is as it was."""
    private.replace("StrategyBase.num_replicas_in_sync", lambda number, of: 1 if _within.alone else number(of))
    private.replace("summary.write", _write)
    for name in ("all_reduce", "all_gather"):
        private.replace(f"ReplicaContext.{name}", functools.partial(_refuse, name))


def _refuse(name: str, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    # Synchronized layers, where they are left as Keras's own: its call, and the gradient that TensorFlow takes of it.
    if not _within.alone or _called_by().startswith(("keras.", "tensorflow.")):
        return original(*args, **options)
    raise StepError(
        f"tf.distribute.get_replica_context().{name} was called in a layer, a loss or a train_step, whose results the "
        "step combines over the replicas itself. Leave it out; for a loss over the whole batch use mk.train.all_gather "
        "with Step.from_loss(..., whole_batch=True), for statistics BatchNormalization(synchronized=True)."
    )


def _write(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if _within.alone and not tf.distribute.has_strategy():  # in a thread of its own, which has no writer
        (_within.summaries or _warn_of_summaries)()
    return original(*args, **options)


@functools.cache
def _warn_of_summaries() -> None:
    _log.warning(
        "A layer, a loss or a metric calls tf.summary, which writes nothing in a step. Return what it writes: as "
        "another output of the model with a metric, or by its name from the loss_fn of Step.from_loss."
    )


def _called_by() -> str:
    """Return the module whose code called a function that is replaced, of one that a replacement calls."""
    caller = inspect.stack(0)[3]  # 1 is `_refuse`, 2 what `private.replace` made
    return str(caller.frame.f_globals["__name__"])
