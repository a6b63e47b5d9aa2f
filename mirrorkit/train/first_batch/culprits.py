"""What is to blame where parts of a batch do not give what all its rows give: a layer's outputs, or added losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel
from mirrorkit.errors import StepError
from mirrorkit.recording import RecordedCall
from mirrorkit.train.first_batch.compared import apart, in_float64, rounding_of
from mirrorkit.train.first_batch.running import Noted, PureRuns
from mirrorkit.train.step.own_loss import LossModel
from mirrorkit.train.step.supervised import Supervised

LAYERS = (
    "Let layers work along other axes than the first, normalize by keras.layers.BatchNormalization(synchronized=True), "
    "and draw from a keras.random.SeedGenerator."
)


def culprits(runs: PureRuns, *, training: bool) -> dict[str, list[str]]:
    """Say in sentences what differs between all rows and parts of them, by the name that leaves it unchecked."""
    runs.recording = True
    try:
        runs.both()
    except StepError:
        raise
    except Exception:  # whatever a user's layer may raise
        return {}
    step, (whole, *parts) = runs.step, runs.notes
    found = _mixing(whole, parts, rounding_of(step.model))
    return {
        "rows": [] if found is None else [_said(step, *found, runs.count, training=training)],
        "add_loss": list(_added(step.model, whole, parts, runs.sizes)),
    }


def _mixing(whole: Noted, parts: Sequence[Noted], share: float) -> tuple[RecordedCall, tf.Tensor] | None:
    """Return the first call, and its output, that for parts of the rows is neither that for all, nor parts of it."""
    # Each pass calls the same layers in the same order: a call of the pass over all rows is beside those of the parts.
    calls = (one.calls for one in (whole, *parts))
    call: RecordedCall
    for call, *others in zip(*calls, strict=False):
        if any(other.layer is not call.layer for other in others):
            return None
        outputs = (one.outputs for one in (call, *others))
        for output, *of_parts in zip(*outputs, strict=False):
            is_one = all(apart(output, part) <= share for part in of_parts)  # such as a weight
            are_alike = len({part.shape[1:] for part in of_parts}) == 1  # else they are padded differently
            together = np.concatenate([np.atleast_1d(part) for part in of_parts]) if are_alike else np.nan
            if not is_one and apart(output, together) > share:
                return call, output
    return None


def _said(step: Supervised, call: RecordedCall, output: tf.Tensor, count: int, *, training: bool) -> str:
    if not isinstance(call.layer, LossModel):
        return (
            f"What {call.name} returns for an example ({list(output.shape)} for {count} rows) depends on the other "
            "examples of its batch, on how many there are, or on its place among them "
            f"(training={training}): a layer uses all rows of its batch, of which a replica has only its own, or draws "
            f"with a constant seed, which each replica repeats. {LAYERS}"
        )
    name = next(name for name, value in call.result.items() if value is output)
    if step.is_whole:
        return (
            f"What loss_fn returns as {name!r} is not the same for parts of a batch that gather rows from each other "
            "as for the whole batch. All that it uses of other examples, and how many there are, must come from "
            "mk.train.all_gather, and it must return the values of its own rows."
        )
    return (
        f"What loss_fn returns as {name!r} for an example depends on the other examples of its batch, or on how many "
        "there are. Each value must come from its own example alone: take means over other axes than the first, do not "
        "divide by the number of rows, since a step takes the mean over the global batch itself, and let the data give "
        "each example its pair or its negatives. A loss that is over the whole batch gathers what it needs of the "
        "others with mk.train.all_gather, in Step.from_loss(..., whole_batch=True)."
    )


def _added(model: KerasModel, whole: Noted, parts: Sequence[Noted], sizes: Sequence[int]) -> Iterator[str]:
    """Compare what layers add to the loss, which must be a mean over the rows."""
    count = sum(sizes)
    for i, (layer, value) in enumerate(zip(whole.adding, whole.added, strict=True)):
        total, values = _number(value), [_number(part.added[i]) for part in parts]
        mean = float(np.dot(sizes, values)) / count
        if abs(total - mean) > rounding_of(model) * max(abs(total), *map(abs, values)):
            yield (
                f"The layer {layer.name!r} adds {total:.6g} to the loss (add_loss or activity_regularizer) for {count} "
                f"rows, but the mean over parts of them is {mean:.6g}: {values[0]:.6g} for {sizes[0]} rows, "
                f"{values[1]:.6g} for {sizes[1]}. Add a mean over the rows (keras.ops.mean) of what each row gives by "
                "itself. An activity_regularizer returns the sum over the rows, by whose number Keras divides it."
            )


def _number(tensor: tf.Tensor) -> float:
    return float(in_float64(tensor).sum())
