"""Check that a model's losses and metrics of some rows are those of parts of them, with other targets too.

Keras's own `compute_loss` and `compute_metrics` are called: with the targets and predictions of some rows, and with
others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.first_batch.compared import LARGEST, differ, is_loss, numbers
from mirrorkit.train.first_batch.rows import Computed, InParts
from mirrorkit.train.first_batch.sampled_rows import OTHER_ORDER, ROWS, Rows, few_rows, parts_of, variants_of
from mirrorkit.train.keras_model.calling import call_model
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.replica_code.pure_step import Values, run_pure
from mirrorkit.train.replica_code.scope import Share
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import EXAMPLES, LOSS

_EXACT = 1e-5  # rounding of sums in parts of their size, where rows in another order differ by less than a tenth of it


def function_faults(step: Supervised, parts: Nest) -> dict[str, list[str]]:
    """Return by log name what is wrong with losses and metrics, of `ROWS` rows that were taken apart."""
    batch = unpack_batch(parts)
    found: dict[str, list[str]] = {}
    try:
        x = few_rows(step.trained, batch.x)
        y_pred = _predicted(step, x)
    except StepError:
        raise
    except Exception:  # whatever a user's layer may raise; the step, which is run next, will
        return found
    for rows in variants_of(batch.y, y_pred, batch.weight, tf.nest.flatten(x)[0].shape[0]):
        try:
            for name, difference in _differences(step, rows):
                if step.strategy.num_replicas_in_sync == 1 and not is_loss(name):
                    continue  # the parts of an accumulated update are batches to a metric, as in Keras
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


def _predicted(step: Supervised, x: Nest) -> Nest:
    """Return what the model predicts; what it gives in training where it cannot predict, as with RandomCrop."""

    count = tf.nest.flatten(x)[0].shape[0]

    def outputs(weights: Any, state: Any, in_parts: InParts, training: bool) -> Nest:
        (found,) = in_parts(lambda x: call_model(step.trained, weights, state, x, training=training)[0], [count])
        return found

    try:
        return Computed(step, x, training=False)(functools.partial(outputs, training=False))
    except Exception:  # whatever a user's layer may raise
        return Computed(step, x, training=True)(functools.partial(outputs, training=True))


def _differences(step: Supervised, rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield by log name how the logs of all rows differ from those of the parts."""
    sizes = parts_of(ROWS)
    whole, parts = _measured(step, rows, [[ROWS], sizes])
    suspects = {}
    for name, value in whole.items():
        one, other = numbers([value, parts[name]])
        size = max(np.max(np.abs(one), initial=0.0), np.max(np.abs(other), initial=0.0))
        if differ(one, other, _EXACT * size):
            suspects[name] = one, other, size
    if not suspects:
        return
    (control,) = _measured(step, rows.taken(OTHER_ORDER), [[ROWS]])
    for name, (one, other, size) in suspects.items():
        (again,) = numbers([control[name]])
        rounding = min(10 * np.max(np.abs(again - one), initial=0.0), LARGEST * size)
        if differ(one, other, rounding):
            place = np.unravel_index(np.argmax(np.abs(one - other)), one.shape)
            yield name, f"{one[place]:.6g} in place of {other[place]:.6g} for {' + '.join(map(str, sizes))} rows"


def _measured(step: Supervised, rows: Rows, cuts: list[list[int]]) -> list[dict[str, tf.Tensor]]:
    """Return the logs for all rows in parts of these sizes, for each of the cuts."""
    model, totals = step.own.model, step.totals
    computed = Computed(step, rows.present, training=False)

    with_loss = not any(map(is_loss, step.options.unchecked))  # else it may fail where metrics do not

    def measure(rows: Rows) -> dict[str, Any]:
        return _measure(model, rows, with_loss=with_loss)

    def of_cuts(weights: Any, state: Any, in_parts: InParts) -> list[Nest]:
        def of_part(part: Nest) -> tf.Tensor:
            own = rows.like(part)
            share = Share(
                0, step.own.replicas, tf.constant(float(own.size)), float(ROWS), 1.0, _no_draws, ambient.draws
            )
            given = Values(weights, state, totals.zeros)
            ran = run_pure(model, measure, given, own, share, gather=lambda rows: rows)
            return totals.of(ran)

        return [tf.add_n(in_parts(of_part, sizes)) for sizes in cuts]

    found = computed(of_cuts)
    return [step.logs(one) | {"loss": one[LOSS] / one[EXAMPLES]} for one in found]


def _no_draws() -> tf.Tensor:
    return tf.zeros([2], tf.int64)


def _measure(model: KerasModel, rows: Rows, *, with_loss: bool) -> dict[str, Any]:
    """Do what Keras's `test_step` does, with predictions that are given."""
    for y_pred, mask in zip(tf.nest.flatten(rows.y_pred), rows.masks, strict=True):
        if mask is not None:
            private.get("masking.set_keras_mask")(y_pred, mask)
    loss = tf.zeros([])
    if with_loss:
        loss = model.compute_loss(None, rows.y, rows.y_pred, rows.weight, training=False)
    model.compute_metrics(None, rows.y, rows.y_pred, rows.weight)
    return {"loss": loss}
