"""Calls of TensorFlow by a model's code on a replica: it is one replica's, and its tf.functions are part of the trace.

What it computes for a share of the batch is combined by the step, and by nobody else. TensorFlow's guide divides a loss
by the number of replicas, since there the gradients are added up afterwards. A step averages them over the rows, so its
replicas would divide twice.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, replaces

_log = logging.getLogger("mirrorkit")


def call_inlined(function: Any, *args: Any, **options: Any) -> Any:
    """Call what a tf.function was made of, converted by AutoGraph as in a trace of its own."""
    return _converted_call()(function.python_function, args, options)


def _call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return function(*args, **options)


@functools.cache
def _converted_call() -> Any:
    return tf.autograph.to_graph(_call)  # and whatever it calls


@replaces("Function.__call__", within="inlines")
def _function(original: Callable[..., Any], function: Any, *args: Any, **options: Any) -> Any:
    is_of_tensorflow = function.python_function.__module__.startswith("tensorflow.")  # vectorized loops
    return (original if is_of_tensorflow else call_inlined)(function, *args, **options)


@replaces("StrategyBase.num_replicas_in_sync", within="alone")
def _num_replicas_in_sync(original: Callable[..., int], strategy: tf.distribute.Strategy) -> int:
    return 1


@replaces("ReplicaContext.all_reduce", "ReplicaContext.all_gather", within="alone")
def _refuse(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    # Synchronized layers, where they are left as Keras's own: its call, and the gradient that TensorFlow takes of it.
    caller = inspect.stack(0)[2]  # 1 is what `private` made
    if str(caller.frame.f_globals["__name__"]).startswith(("keras.", "tensorflow.")):
        return original(*args, **options)
    raise StepError(
        f"tf.distribute.get_replica_context().{original.__name__} was called in a layer, a loss or a train_step, whose "
        "results the step combines over the replicas itself. Leave it out; for a loss over the whole batch use "
        "mk.train.all_gather with Step.from_loss(..., whole_batch=True), for statistics "
        "BatchNormalization(synchronized=True)."
    )


@replaces("summary.write", within="alone")
def _write(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if not tf.distribute.has_strategy():  # in a thread of its own, which has no writer
        (ambient.summaries or warn_of_summaries)()
    return original(*args, **options)


@functools.cache
def warn_of_summaries() -> None:
    """Say once that a step writes none."""
    _log.warning(
        "A layer, a loss or a metric calls tf.summary, which writes nothing in a step. Return what it writes: as "
        "another output of the model with a metric, or by its name from the loss_fn of Step.from_loss."
    )
