"""A plugin of pytest: a Keras metric's state is summed over the shares of replicas, as the totals of a step are.

Each `update_state` of targets and outputs is cut into the rows of three replicas. What each adds to an empty state is
added up, and the result is that of the sums.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import recorder
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.data import bounds
from mirrorkit.errors import StepError

REPLICAS = 3
OUTPUT = ("y_true", "y_pred", "sample_weight")
EXACT = 2**24  # whole numbers beyond are rounded in float32


class Rows(NamedTuple):
    """Targets, outputs and weights."""

    y: Any
    y_pred: Any
    weight: Any


def pytest_collection_finish() -> None:
    """Replace the methods of every metric, of the tests' own too."""
    for cls in set(_subclasses(keras.metrics.Metric)):
        if "update_state" in vars(cls):
            cls.update_state = _update_state(vars(cls)["update_state"])


def _subclasses(cls: type) -> Iterator[type]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)


def _update_state(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.is_inside() or not tf.executing_eagerly():
            return original(self, *args, **kwargs)
        with recorder.inside():
            if reason := _summed(self, signature, functools.partial(original, self), *args, **kwargs):
                recorder.beside(reason)
                return original(self, *args, **kwargs)
        recorder.went_through()
        return None

    return update_state


def _summed(metric: Any, signature: inspect.Signature, update: Any, *args: Any, **kwargs: Any) -> str:
    """Update the metric as a step does, or say why a step would not; `update` is what the test would have called."""
    if list(signature.parameters)[1:4] == ["y_true", "y_pred"]:
        return "its metric takes no `sample_weight`; `fit` and a step pass one"
    if list(signature.parameters)[1:4] != list(OUTPUT):
        return "its metric takes values, not targets and outputs; a step does not support such metrics"
    given = signature.bind(metric, *args, **kwargs).arguments
    output = Rows(*(_tensor(given.get(name)) for name in OUTPUT))
    if not (output.y.shape.rank and output.y_pred.shape.rank):
        return "its targets or outputs are a scalar, without rows"
    if output.y_pred.shape.rank == 1 and getattr(metric, "top_k", None):
        return "its metric takes the `top_k` of all rows; on several replicas a step refuses it at the first batch"
    if any(np.any(np.abs(v) >= EXACT) for v in metric.variables if not tf.as_dtype(v.dtype).is_floating):
        return "its metric counts beyond 16,777,216 in integers; a step's totals are float32"
    try:
        _add(metric, output, functools.partial(update, *args, **kwargs))
    except StepError as error:
        if "could not be computed for targets" in str(error):
            return "a step refuses its metric for targets and outputs of these shapes and dtypes"
        return f"a step refuses its metric: {error}"
    return ""


def _tensor(value: Any) -> tf.Tensor | None:
    return None if value is None else tf.convert_to_tensor(value)


def _add(metric: Any, output: Rows, update: Any) -> None:
    """Add to the state of a metric what the rows of all replicas add to an empty one."""
    before = [tf.convert_to_tensor(variable) for variable in metric.variables]
    update()  # which creates variables that are missing, as the first trace of a step does
    metric.reset_state()
    empty = [tf.convert_to_tensor(variable) for variable in metric.variables]
    before += empty[len(before) :]
    if any(np.any(value) for value in empty):
        raise StepError("its state does not begin with zeros")
    for replica in range(REPLICAS):
        if share := _share(output, replica):
            y, y_pred, weight = share
            added = metric.stateless_update_state(empty, y, y_pred, sample_weight=weight)
            before = [
                one + tf.cast(tf.cast(other, tf.float32), one.dtype) for one, other in zip(before, added, strict=True)
            ]
    for variable, value in zip(metric.variables, before, strict=True):
        variable.assign(value)


def _share(output: Rows, replica: int) -> Rows | None:
    """Return the rows of a replica; None where it has none, and adds zeros."""
    first, end = bounds(len(output.y_pred), replica, REPLICAS)

    def rows(value: tf.Tensor | None) -> tf.Tensor | None:
        is_by_row = value is not None and value.shape.rank and len(value) == len(output.y_pred)
        return value[first:end] if is_by_row else value  # weights that are one for all rows

    return Rows(*map(rows, output)) if first < end else None
