"""What a step comes to on some rows, at once or in parts, and where the two differ by more than rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits

# Differences, in parts of a number's size:
LARGEST = 1e-3  # larger than any rounding in float32
SIXTEEN = 0.05  # the same in 16 bits
_GRADIENT = 3e-5  # of a weight's gradient; of all together rounding is 3e-7 in nets of 4 to 22 layers
_NOTHING = 1e-7  # a difference between gradients, below which it is none
_LATER = 0.05  # of an update after the first, whose weights an optimizer may have moved by rounding alone
_ROUNDED = 30  # times what the last digits of the weights change: as much may be rounding
_RESOLUTION = 4 * float(np.finfo(np.float32).eps)  # of a value that advances


class Ran(NamedTuple):
    """What a run came to; the values of variables are from after it."""

    gradients: list[list[np.ndarray]]  # of each update
    state: dict[str, np.ndarray]  # of what the model's code writes by itself, not through an optimizer, by its path
    logs: Mapping[str, Any]
    rows: Mapping[str, tf.Tensor] = {}  # outputs, with a row for each example


def is_loss(name: str) -> bool:
    """Return whether a log is that of a loss."""
    return name == "loss" or name.endswith("_loss")


def rounding_of(model: KerasModel) -> float:
    """Return which difference may be rounding, in parts of a number's size."""
    return SIXTEEN if has_sixteen_bits(model) else LARGEST


def differing(
    model: KerasModel,
    whole: Ran,
    parts: Ran,
    *,
    before: Mapping[str, np.ndarray] | None = None,
    weights: Sequence[str] = (),
) -> Iterator[tuple[str, str]]:
    """Say what a step does otherwise on parts of a batch: names of what it is about, each with a sentence without "it".

    State is compared where its values from `before` are given. `weights` are the names of those that have gradients.
    """
    share = rounding_of(model)
    first = share if share > LARGEST or multiplies_coarsely() else _GRADIENT
    loose = max(share, _LATER) if len(whole.gradients) > 1 else share
    for number, updates in enumerate(zip(whole.gradients, parts.gradients, strict=True)):
        # Each weight by itself, since an optimizer may scale it so; after an update, which may have done that to what
        # rounding left, all of them together.
        one, other = updates if number == 0 else ([np.concatenate([*map(np.ravel, all_)])] for all_ in updates)
        distances = [apart(*pair, nothing=_NOTHING) for pair in zip(one, other, strict=True)]
        if max(distances, default=0.0) > (loose if number else first):
            worst = int(np.argmax(distances))
            of = f" of {weights[worst]!r}" if weights else ""
            yield (
                "gradients",
                f"gives its update {number + 1} gradients{of} with {shown(one[worst])} on all rows, and with "
                f"{shown(other[worst])} when averaged over shares, {distances[worst]:.2g} of the largest apart.",
            )
    for name, old in (before or {}).items():
        values = [in_float64(value) for value in (whole.state[name], parts.state[name], old)]
        if apart(*values) > loose:
            after = f"{shown(values[0])} after all rows, and at {shown(values[1])} after shares"
            yield "state", f"leaves {name!r} at {after}."
    for name, log in parts.logs.items():
        if apart(whole.logs[name], log) > loose:
            yield name, f"logs {name!r} as {shown(whole.logs[name])} on all rows, and as {shown(log)} on shares."
    for name, rows in parts.rows.items():
        if apart(whole.rows[name], rows) > share:
            yield name, ""


def apart(one: Any, other: Any, before: Any = 0.0, *, nothing: float = 1e-6) -> float:
    """Return by which part of the largest number two arrays differ, or of the way that they have gone from `before`.

    It is infinite for other shapes, and where a number is not finite in one alone. A difference up to `nothing`, or of
    the last digits, is none.
    """
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return np.inf
    dtype = tf.as_dtype(one.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return SIXTEEN / 2 if np.any(one != other) else 0.0  # of numbers in 16 bits the largest may be another's
    one, other = (array.astype(np.complex128 if dtype.is_complex else np.float64) for array in (one, other))
    are_same = (one == other) | (np.isnan(one) & np.isnan(other))
    apart_by = np.abs(np.subtract(one, other, out=np.zeros_like(one), where=~are_same))
    largest = float(np.max(np.nan_to_num(apart_by, nan=np.inf, posinf=np.inf), initial=0.0))
    if largest <= max(nothing, _RESOLUTION * _largest(one, other)):
        return 0.0
    return largest / max(_largest(one - before, other - before), nothing)


def but_for_rounding(whole: Ran, parts: Ran, nudged: Ran) -> Ran:
    """Return the parts; with the gradient of the whole for each weight, where `nudged` weights change it about as much.

    Of a converged model, or of a bias before a normalization, the gradient is what rounding leaves.
    """

    def chosen(one: np.ndarray, other: np.ndarray, control: np.ndarray) -> np.ndarray:
        return one if np.all(np.abs(one - other) <= _ROUNDED * _largest(one - control)) else other

    updates = zip(whole.gradients, parts.gradients, nudged.gradients, strict=True)
    return parts._replace(gradients=[list(map(chosen, *update)) for update in updates])


def nudged(model: KerasModel, weights: Sequence[Any]) -> list[tf.Tensor]:
    """Return the model's weights with other last digits."""
    eps = 2.0**-7 if has_sixteen_bits(model) else 2.0**-22
    values = map(tf.convert_to_tensor, weights)
    return [value * (1 + eps * tf.random.stateless_normal(value.shape, [0, 0], dtype=value.dtype)) for value in values]


def _largest(*arrays: np.ndarray) -> float:
    """Return the size of the largest finite number."""
    return max(float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array))) for array in arrays)


def in_float64(value: Any) -> np.ndarray:
    """Return numbers as an array."""
    return np.asarray(tf.cast(value, tf.float64))


def shown(value: Any) -> str:
    """Return a number, or the norm of several."""
    array = in_float64(value)
    return f"{array.item():.6g}" if array.size == 1 else f"a norm of {np.linalg.norm(array):.6g}"


def multiplies_coarsely() -> bool:
    """Whether there are GPUs, of which some multiply float32 numbers with 10 bits after the point (TF32)."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return tf32 and bool(tf.config.list_logical_devices("GPU"))
