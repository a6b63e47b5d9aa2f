"""Check that a model's outputs for an example, or a loss function's values, come from that example alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel, Nest
from mirrorkit.train.step.layer_state import is_seed
from mirrorkit.train.step.sampled_rows import SEEN, take

# Differences, in parts of a number's size:
LARGEST = 1e-3  # larger than any rounding in float32
SIXTEEN = 0.05  # the same in 16 bits
COARSE = 0.3  # more than noise or BatchNormalization make of a mean, and less than a sum differs

# (x, training, state): outputs, state, added losses
Call = Callable[..., tuple[Nest, list[tf.Tensor], list[tf.Tensor]]]


def of_rows(call: Call, names: Sequence[str | None], seen: Nest, y_pred: Nest) -> Iterator[str]:
    """Compare outputs for rows with the outputs for the same rows, in the same places, beside others."""
    for number in _mixed(call, seen, tf.nest.flatten(y_pred)):
        output = "The model's output" if names[number] is None else f"The output {names[number]!r}"
        yield (
            f"{output} for an example depends on the other examples of its batch (training=False): a layer mixes "
            "the rows. Let it work along other axes than the first."
        )


def _mixed(call: Call, seen: Nest, outputs: Sequence[tf.Tensor]) -> Iterator[int]:
    """Yield the numbers of the outputs whose rows depend on the other rows."""
    kept_and_rows = [([1], [1, 1, 1]), ([0, 2], [0, 0, 2])]
    again = [numbers(tf.nest.flatten(call(take(seen, rows))[0])) for _, rows in kept_and_rows]
    for number, one in enumerate(outputs):
        if one.shape[:1] != [SEEN] or not one.dtype.is_floating:
            continue
        (whole,) = numbers([one])
        rounding = (LARGEST if one.dtype.size >= 4 else SIXTEEN) * np.max(np.abs(whole), initial=0.0)
        pairs = [(whole[kept], other[number][kept]) for (kept, _), other in zip(kept_and_rows, again, strict=True)]
        if not any(differ(before, beside, rounding) for before, beside in pairs):
            continue
        if differ(whole, numbers(tf.nest.flatten(call(seen)[0]))[number], rounding):
            continue  # the same rows give something else again: random numbers without a seed, which tracing refuses
        yield number


def of_values(
    call: Call, names: Sequence[str], others: Sequence[list[tf.Tensor]], seen: Nest, y_pred: Nest
) -> Iterator[str]:
    """Compare what a loss function returns for rows with what it returns beside other rows, and beside fewer."""
    outputs = tf.nest.flatten(y_pred)
    mixed = set(_mixed(call, seen, outputs))
    fewer = [(rows, numbers(tf.nest.flatten(call(take(seen, rows))[0]))) for rows in ([1], [0, 2])]
    drawn = [numbers(tf.nest.flatten(call(seen, False, other)[0])) for other in others[:2]]
    for number, (name, whole) in enumerate(zip(names, numbers(outputs), strict=True)):
        # Of a division by the number of rows the largest of three values changes by half at least; kernels for other
        # sizes round otherwise, and where numbers are drawn, others are for fewer rows.
        noise = max((np.max(np.abs(values[number] - whole)) for values in drawn), default=0.0)
        rounding = max(COARSE * np.max(np.abs(whole), initial=0.0), 2 * noise)
        if number in mixed:
            yield (
                f"What loss_fn returns as {name!r} for an example depends on the other examples of its batch. Each "
                "value must come from its own example alone: take means over other axes than the first, and let the "
                "data give each example its pair or its negatives."
            )
        elif any(differ(whole[rows], values[number], rounding) for rows, values in fewer):
            yield (
                f"What loss_fn returns as {name!r} for an example depends on how many examples there are. A step takes "
                "the mean over the global batch itself: do not divide by the number of rows."
            )


def other_seeds(model: KerasModel, state: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    """Return the state with other seeds, several times; nothing where it has no seeds."""
    seeds = [is_seed(variable) for variable in model.non_trainable_variables]
    others = [[value + n if seed else value for value, seed in zip(state, seeds, strict=True)] for n in range(1, 6)]
    return others if any(seeds) else []


def numbers(tensors: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """Return them in float64."""
    return [np.asarray(tf.cast(tensor, tf.float64)) for tensor in tensors]


def differ(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    """Whether two arrays differ by more than rounding; NaN on either side is no difference."""
    return bool(np.any(np.abs(one - other) > rounding)) if one.shape == other.shape else True
