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
_GRADIENT = 3e-5  # of the norm of a weight's gradient; of all together rounding is 3e-7 in nets of 4 to 22 layers
_NOTHING = 1e-7  # the norm of a difference between gradients, below which it is none
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
    for number, (one, other) in enumerate(zip(whole.gradients, parts.gradients, strict=True)):
        # Each weight by itself, since an optimizer may scale it so; after an update, which may have done that to what
        # rounding left, all of them together.
        pairs = [([a], [b]) for a, b in zip(one, other, strict=True)] if number == 0 else [(one, other)]
        apart = [_apart(*pair) for pair in pairs]
        worst = int(np.argmax(apart)) if apart else 0
        if apart and apart[worst] > (max(share, _LATER) if number else first):
            of = f" of {weights[worst]!r}" if weights else ""
            size, other_size = map(_norm, pairs[worst])
            yield (
                "gradients",
                f"gives its update {number + 1} gradients{of} of the norm {size:.4g} on all rows, and of "
                f"{other_size:.4g} when averaged over shares, {apart[worst]:.2g} of it apart.",
            )
    loose = max(share, _LATER) if len(whole.gradients) > 1 else share
    for name, old in (before or {}).items():
        if _moved_apart(old, whole.state[name], parts.state[name], share=loose):
            after = f"{shown(whole.state[name])} after all rows, and at {shown(parts.state[name])} after shares"
            yield "state", f"leaves {name!r} at {after}."
    for name, log in parts.logs.items():
        if not near(whole.logs[name], log, loose):
            yield name, f"logs {name!r} as {shown(whole.logs[name])} on all rows, and as {shown(log)} on shares."
    for name, rows in parts.rows.items():
        if rows_differ(whole.rows[name], [rows], share):
            yield name, ""


def but_for_rounding(whole: Ran, parts: Ran, nudged: Ran) -> Ran:
    """Return the parts; with the gradient of the whole for each weight, where `nudged` weights change it about as much.

    Of a converged model, or of a bias before a normalization, the gradient is what rounding leaves.
    """

    def chosen(one: np.ndarray, other: np.ndarray, control: np.ndarray) -> np.ndarray:
        return one if np.all(np.abs(one - other) <= _ROUNDED * _largest(one - control)) else other

    updates = zip(whole.gradients, parts.gradients, nudged.gradients, strict=True)
    return parts._replace(gradients=[list(map(chosen, *update)) for update in updates])


def nudge_of(model: KerasModel) -> float:
    """Return by which part of itself a weight is changed in its last digits."""
    return 2.0**-7 if has_sixteen_bits(model) else 2.0**-22


def nudged(weight: tf.Tensor, eps: float) -> tf.Tensor:
    """Change the last digits."""
    return weight * (1 + eps * tf.random.stateless_normal(weight.shape, [0, 0], dtype=weight.dtype))


def _apart(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return the distance of gradients by the larger norm; infinite where any number is NaN."""
    apart = _norm([a - b for a, b in zip(one, other, strict=True)])
    if apart <= _NOTHING:
        return 0.0
    return float(np.nan_to_num(apart / max(_norm(one), _norm(other)), nan=np.inf))


def _largest(*arrays: np.ndarray) -> float:
    """Return the size of the largest finite number."""
    return max(float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array))) for array in arrays)


def rows_differ(whole: Any, parts: Sequence[Any], share: float) -> bool:
    """Return whether outputs for all rows are not those for the parts, one behind the other.

    `share` is what rounding may be of the largest number.
    """
    one, other = np.asarray(whole), np.concatenate([np.atleast_1d(np.asarray(part)) for part in parts])
    if one.shape != other.shape:
        return True
    dtype = tf.as_dtype(one.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return share < SIXTEEN and bool(np.any(one != other))  # of numbers in 16 bits the largest may be another's
    wide = np.complex128 if dtype.is_complex else np.float64
    one, other = one.astype(wide), other.astype(wide)
    return differ(one, other, share * _largest(one))


def numbers(tensors: Sequence[Any]) -> list[np.ndarray]:
    """Return them in float64."""
    return [np.asarray(tf.cast(tensor, tf.float64)) for tensor in tensors]


def differ(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    """Whether two arrays differ by more than rounding; NaN on either side is no difference."""
    return bool(np.any(np.abs(one - other) > rounding)) if one.shape == other.shape else True


def near(one: Any, other: Any, share: float) -> bool:
    """Whether two arrays or tensors agree but for a share of the largest number; NaN beside NaN does."""
    one, other = numbers([one, other])
    rounding = share * _largest(one, other) + 1e-6
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=rounding, equal_nan=True))


def shown(value: Any) -> str:
    """Return a number, or the norm of several."""
    (array,) = numbers([value])
    return f"{array.item():.6g}" if array.size == 1 else f"a norm of {np.linalg.norm(array):.6g}"


def multiplies_coarsely() -> bool:
    """Whether there are GPUs, of which some multiply float32 numbers with 10 bits after the point (TF32)."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return tf32 and bool(tf.config.list_logical_devices("GPU"))


def _moved_apart(*values: np.ndarray, share: float) -> bool:
    """Return whether a variable, from its old value on, went to two places that differ by a share of the way."""
    old, one, other = numbers(values)
    return differ(one, other, max(share * _largest(one - old, other - old), _RESOLUTION * _largest(one, other)))


def _norm(values: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(value, np.float64))) for value in values)))
