"""Check that what a layer remembers can be combined, as a mean over the examples.

A sum, a count or a maximum over the examples would become something else. Integers that depend on them are refused when
the step is traced, see `layer_state.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel
from mirrorkit.train.keras_model.layer_state import is_seed, layers_of

_log = logging.getLogger("mirrorkit")

RESOLUTION = 4 * float(np.finfo(np.float32).eps)  # of the value that advances
_COUNTED = 0.2  # of an advance; less is an unbiased variance of few rows
_OTHER = "something else"
_RULE = (
    "Replicas' values are combined as a mean over the examples, integers as a number of calls. Keep a mean over the "
    "rows (keras.ops.mean), or leave it to a metric."
)


def state_faults(
    model: KerasModel,
    state: Sequence[tf.Tensor],
    after: Callable[[Sequence[int]], Sequence[Sequence[tf.Tensor]]],
    twice: Callable[[], Sequence[Sequence[tf.Tensor]]],
    rows: int,
    rounding: float,
) -> Iterator[str]:
    """Yield a sentence for each variable that cannot be combined as a mean over rows; warn of what is no mean either.

    BatchNormalization is left out: its variance is known to depend on the split a little.

    Args:
        model: its layers' non-trainable variables.
        state: their values.
        after: called with numbers of rows, returns the values after a training pass over each part with as many.
        twice: returns the values after a pass over rows of which each is there twice, and over these rows once.
        rows: how many there are, at least 12.
        rounding: of the size of an advance.
    """
    checked = _others(model)
    if not checked:
        return
    (whole,) = after([rows])
    cuts = [[size, rows - size] for size in (rows // 3, rows // 2 + 2)]
    passes = [after(cut) for cut in cuts]
    for i in checked:
        if not any(np.any(_array(values[i]) != _array(state[i])) for values in (whole, *passes[0])):
            continue
        variable = model.non_trainable_variables[i]
        parts = [[_array(values[i]) for values in pair] for pair in passes]
        sizes = [[part / rows for part in cut] for cut in cuts]
        kind = _kind(_array(state[i]), _array(whole[i]), parts, sizes, rounding)
        if kind in (None, _OTHER) and getattr(variable, "aggregation", None) == "sum":
            yield f"The state {variable.path!r} of a layer asks for aggregation='sum', which is not done. {_RULE}"
        elif kind == _OTHER and _counts(_array(state[i]), *(_array(values[i]) for values in twice())):
            yield f"The state {variable.path!r} of a layer depends on how many rows there are. {_RULE}"
        elif kind == _OTHER:
            _log.warning(
                "The state %r of a layer is not a mean over the rows. On several replicas it becomes the mean of what "
                "each finds in its share, which depends on how a batch is split, as the variance of "
                "BatchNormalization does.",
                variable.path,
            )
        elif kind:
            yield f"The state {variable.path!r} of a layer is {kind}. {_RULE}"


def _counts(old: np.ndarray, twice: np.ndarray, once: np.ndarray) -> bool:
    """Return whether the rows, each of them twice, give another value: no mean, variance or quantile does."""
    return not _near(twice, once, _COUNTED * np.max(np.abs([twice - old, once - old]), initial=0.0))


def _others(model: KerasModel) -> list[int]:
    """Return the indices of the state that is neither a seed nor BatchNormalization's."""
    known = set()
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            known |= {id(layer.moving_mean), id(layer.moving_variance)}
    variables = enumerate(model.non_trainable_variables)
    return [i for i, variable in variables if id(variable) not in known and not is_seed(variable)]


def _kind(
    old: np.ndarray,
    whole: np.ndarray,
    parts: list[list[np.ndarray]],
    sizes: list[list[float]],
    rounding: float,
) -> str | None:
    """Say what a state is other than a mean over rows; None where it is one."""
    advance = whole - old
    size = np.max(np.abs([advance, *[part - old for pair in parts for part in pair]]), initial=0.0)
    rounding = max(rounding * size, RESOLUTION * np.max(np.abs([old, whole]), initial=0.0))
    means = [one * (a - old) + other * (b - old) for (a, b), (one, other) in zip(parts, sizes, strict=True)]
    if all(_near(mean, advance, rounding) for mean in means):
        return None
    for name, extreme in (("maximum", np.maximum), ("minimum", np.minimum)):
        if all(_near(extreme(a, b), whole, rounding) for a, b in parts):
            return f"like a {name} over the rows"
    # A sum over rows S has the advance c + S(rows), so the two parts of any cut add up to c more than the whole.
    more = [(a - old) + (b - old) - advance for a, b in parts]
    if _near(more[0], more[1], rounding):
        return "a sum over the rows"
    return _OTHER


def _near(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    return bool(np.all(np.abs(one - other) <= rounding))


def _array(value: tf.Tensor) -> np.ndarray:
    return np.asarray(tf.cast(value, tf.float64))
