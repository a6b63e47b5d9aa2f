"""Check that a model's losses and metrics of some rows are those of parts of them, with other targets too.

The step evaluates predictions that are given: those of some rows, and others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.compared import LARGEST, apart, is_loss, shown
from mirrorkit.train.first_batch.running import PureRuns
from mirrorkit.train.first_batch.sampled_rows import Rows, rows_to_see, size_of, take, variants_of
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.step.supervised import Supervised

_EXACT = 1e-5  # rounding of sums in parts of their size, where rows in another order differ by less than a tenth of it


def function_faults(runs: PureRuns, batch: Nest, *, differs: bool) -> dict[str, list[str]]:
    """Return by log name what is wrong with losses and metrics, of what `runs` has predicted for rows of a batch.

    Where the step differs on these rows, losses and metrics are compared on them too, to name what is to blame.
    """
    step = runs.step
    found: dict[str, list[str]] = {}
    _, y, weight = unpack_batch(batch)
    outputs = [one for one in tf.nest.flatten(runs.y_pred) if one is not None]
    targets = [one for one in tf.nest.flatten(y) if one is not None]
    if any(one.shape[:1] != [runs.count] for one in outputs):  # its rows are not examples
        return found
    count = rows_to_see(size_of(batch), sum(math.prod(one.shape[1:]) for one in targets + outputs))
    for rows in variants_of(y, runs.y_pred, weight, count, as_they_are=differs):
        try:
            for name, difference in _differences(step, rows, count):
                function = step.measured.functions.get(name)
                found.setdefault(name, [_said(name, f" ({function})" * bool(function), difference, rows)])
        except StepError:
            raise
        except Exception:  # it may require more of targets and predictions than these kinds
            continue
    return found


def _said(name: str, function: str, difference: str, rows: Rows) -> str:
    shapes = [(y.shape, y_pred.shape) for y, y_pred in zip(*map(tf.nest.flatten, (rows.y, rows.y_pred)), strict=False)]
    is_flat = any(len(y) == len(y_pred) == 1 for y, y_pred in shapes)
    axis = "Give targets and outputs a last axis, [batch, 1], over which Keras takes a mean. " * is_flat
    if is_loss(name):
        name += function
        return (
            f"The {name} of a batch is not that of its parts: {difference}. {axis}Return one value per example "
            "(shape [batch]), from that example alone. A loss over the whole batch gathers the other examples: "
            "mk.train.all_gather, in Step.from_loss(..., whole_batch=True)."
        )
    return (
        f"The metric {name!r} for a batch is not that of its parts: {difference}. {axis}Let a metric function return "
        "one value per example (shape [batch]); for a ratio of counts write a keras.metrics.Metric that adds up the "
        "counts and divides in result(), or take one of Keras's."
    )


@contextlib.contextmanager
def _measuring(step: Supervised, rows: Rows) -> Iterator[None]:
    """Let the step, which is given numbers of rows, evaluate the predictions for these."""
    model = step.own.model
    with_loss = not any(map(is_loss, step.options.unchecked))  # else it may fail where metrics do not

    def test_step(data: tuple[tf.Tensor]) -> dict[str, tf.Tensor]:
        y, y_pred, masks, weight = take(rows, *data)
        for one, mask in zip(tf.nest.flatten(y_pred), masks, strict=True):
            if mask is not None:
                private.get("masking.set_keras_mask")(one, mask)
        loss = model.compute_loss(None, y, y_pred, weight, training=False) if with_loss else tf.zeros([])
        model.compute_metrics(None, y, y_pred, weight)
        return {"loss": loss}

    vars(model)["test_step"] = test_step  # not by assignment, which Keras would track
    try:
        yield
    finally:
        del vars(model)["test_step"]


def _differences(step: Supervised, rows: Rows, count: int) -> Iterator[tuple[str, str]]:
    """Yield by log name how the logs of all rows differ from those of the parts."""
    with _measuring(step, rows):
        runs = PureRuns(step, (tf.range(count),), "test")
        whole, parts = runs.both()
        suspects = [name for name, log in parts.logs.items() if apart(whole.logs[name], log) > _EXACT]
        if not suspects:
            return
        again = PureRuns(step, (tf.range(count - 1, -1, -1),), "test").whole()
    for name in suspects:
        one, other = whole.logs[name], parts.logs[name]
        share = _EXACT if apart(one, again.logs[name]) <= _EXACT / 10 else LARGEST
        if apart(one, other) > share:
            yield name, f"{shown(one)} in place of {shown(other)} for {' + '.join(map(str, runs.sizes))} rows"
