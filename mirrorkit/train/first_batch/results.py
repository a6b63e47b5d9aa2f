"""What a step makes of some rows, and how two such results differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN, near, numbers, shown
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits, is_seed
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import path


class Results(NamedTuple):
    """What a pass over some rows comes to."""

    gradients: Sequence[tf.Tensor | None]  # one for each weight; none without training
    state: Sequence[tf.Tensor]  # of the layers, after it
    logs: Mapping[str, tf.Tensor]


def differences(step: Supervised, ours: Results, theirs: Results, where: str) -> list[str]:
    """Say in sentences how `ours` differ from `theirs`, which were computed `where`."""
    share = SIXTEEN if has_sixteen_bits(step.model) else LARGEST
    found = [_in_gradients(step, ours, theirs, share, where)] if theirs.gradients else []
    for variable, one, other in zip(step.trained.non_trainable_variables, ours.state, theirs.state, strict=True):
        if not is_seed(variable) and not near(one, other, share):
            found.append(f"the state {path(variable)!r} becomes {shown(one)}, {where} {shown(other)}.")
    for name, value in theirs.logs.items():
        if name in ours.logs and not near(ours.logs[name], value, share):
            found.append(f"the log {name!r} is {shown(ours.logs[name])}, {where} {shown(value)}.")
    return [text for text in found if text]


def largest_apart(ours: Results, theirs: Results) -> float:
    """Return the largest difference of any number in the gradients."""
    pairs = [pair for pair in zip(ours.gradients, theirs.gradients, strict=True) if all(g is not None for g in pair)]
    return max((float(np.max(np.abs(one - other), initial=0.0)) for one, other in map(numbers, pairs)), default=0.0)


def _in_gradients(step: Supervised, ours: Results, theirs: Results, share: float, where: str) -> str:
    """Compare by the largest number of all gradients: that of a bias before a normalization is rounding alone."""
    largest, worst = 0.0, ("", 0.0, np.zeros(0), np.zeros(0))
    for weight, *given in zip(step.trained.trainable_variables, ours.gradients, theirs.gradients, strict=True):
        shape = next((g.shape for g in given if g is not None), weight.shape)
        one, other = numbers([tf.zeros(shape) if g is None else g for g in given])
        apart = float(np.max(np.abs(one - other), initial=0.0))  # NaN on either side is no difference
        largest = max(largest, float(np.max(np.abs(other), initial=0.0)))
        if apart > worst[1]:
            worst = (path(weight), apart, one, other)
    name, apart, one, other = worst
    if not apart > share * largest + 1e-12:
        return ""
    return (
        f"the gradient of {name!r} has the norm {np.linalg.norm(one):.6g}, {where} {np.linalg.norm(other):.6g}, "
        f"and numbers {apart:.4g} apart."
    )
