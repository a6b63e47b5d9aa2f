"""Check that losses and metrics of some rows are those of parts of them, with other targets and predictions too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import Loss
from mirrorkit.train.first_batch.rounding import LARGEST, differ, numbers
from mirrorkit.train.first_batch.sampled_rows import CUT, OTHER_ORDER, part_of
from mirrorkit.train.first_batch.trying import on_all
from mirrorkit.train.keras_model.outputs import Output
from mirrorkit.train.totals.losses import loss_name, loss_sum

_EXACT = 1e-5  # rounding of sums in parts of their size, where rows in another order differ by less than a tenth of it


def of_loss(name: str, loss: Loss, variants: Sequence[Output]) -> Iterator[str]:
    """Yield what is wrong with a loss, if anything, on these `variants_of` an output."""

    def sums(output: Output) -> list[tf.Tensor]:
        return [number for number in loss_sum(loss, output) if number is not None]

    if difference := _in_parts(sums, variants):
        yield (
            f"The {name} ({loss_name(loss)}) of a batch is not that of its parts: "
            f"{difference}. {_cure(variants[0])}Return one value per example (shape [batch]), from that example alone. "
            "A loss over the whole batch gathers the other examples: mk.train.all_gather, in Step.from_loss(..., "
            "whole_batch=True)."
        )


def of_metric(name: str, state_of: Callable[[Output], list[tf.Tensor]], variants: Sequence[Output]) -> Iterator[str]:
    """Yield the same of a metric, of which `state_of` gives the state."""
    if difference := _in_parts(state_of, variants):
        yield (
            f"The state of the metric {name!r} for a batch is not that of its parts: {difference}. "
            f"{_cure(variants[0])}Let a metric "
            "function return one value per example (shape [batch]); for a ratio of counts write a "
            "keras.metrics.Metric that adds up the counts and divides in result(), or take one of Keras's."
        )


def _cure(output: Output) -> str:
    is_flat = output.y is not None and len(output.y.shape) == len(output.y_pred.shape) == 1
    return "Give targets and outputs a last axis, [batch, 1], over which Keras takes a mean. " * is_flat


def _in_parts(sums: Callable[[Output], list[tf.Tensor]], variants: Sequence[Output]) -> str | None:
    """Return how the sums over all rows differ from those over the parts, or None."""
    for number, variant in enumerate(variants):
        try:
            found = _difference(sums, variant)
        except Exception:
            if number == 0:
                raise
            continue  # the function requires more of targets and predictions than these kinds
        if found:
            return found
    return None


def _difference(sums: Callable[[Output], list[tf.Tensor]], output: Output) -> str | None:
    whole = numbers(on_all(lambda: sums(output)))
    parts = [numbers(sums(part_of(output, rows))) for rows in CUT]
    for number, (value, first, second) in enumerate(zip(whole, *parts, strict=True)):
        size = np.max(np.abs([value, first, second]), initial=0.0)
        if not differ(value, first + second, _EXACT * size):
            continue
        control = numbers(sums(part_of(output, OTHER_ORDER)))[number]
        rounding = min(10 * np.max(np.abs(control - value), initial=0.0), LARGEST * size)
        if differ(value, first + second, rounding):
            place = np.unravel_index(np.argmax(np.abs(value - first - second)), value.shape)
            found = f"{value[place]:.6g} in place of {first[place]:.6g} + {second[place]:.6g}"
            return f"{found} for {' + '.join(str(rows.size) for rows in CUT)} rows"
    return None
