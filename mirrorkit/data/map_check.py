"""Whether a `map` treats each example independently of the others, seen on the first rows of the set.

A worker maps its own rows of a batch, and a replica with the set on its device those of its share. So a map that mixes
rows (mixup, centring) would make something else there than of the whole batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.nests import leaves, pick
from mirrorkit.errors import RecipeError

_log = logging.getLogger("mirrorkit")

ROWS = 32  # what depends on other rows shows on a few

# rounding, as a part of the largest value: half of float32's digits, or four units of what has fewer
_ROUNDING = {"float16": 2**-8, "bfloat16": 2**-5, "float32": 2**-11.5, "float64": 2**-11.5}
_CURE = (
    "Workers, and devices that hold the set, map a part of each batch. For what mixes examples (mixup, centering by "
    "the batch), give Loop a tf.data.Dataset, dataset.batch(global_batch_size).map(function): it is divided after the "
    "map. A constant of the whole set is right in map."
)

Made = dict[str, np.ndarray]  # by the paths of its arrays


def require_by_row(function: Callable[..., Any], element: tuple[Any, ...]) -> None:
    """Raise a `RecipeError` where `function` makes something else of some rows than of all.

    A function that fails on these rows says so where it is used. Two calls of one that draws random numbers differ
    anyhow: there the same numbers are drawn twice, with other examples in half of the rows.

    Args:
        function: `(x, y) -> (x, y)` or the like, of rows.
        element: the first rows of the set: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, arrays or nests of them.
    """
    half = min(len(array) for array in tf.nest.flatten(element)) // 2
    if not half:
        return
    whole = pick(element, slice(2 * half))
    try:
        (made,) = _run(function, whole)
    except Exception:
        return
    for path, array in made.items():
        if array.shape[:1] != (2 * half,):
            raise RecipeError(
                f"map must return a row for each example; for {2 * half} examples it returned an array of shape "
                f"{list(array.shape)} (result{path}). Make more or fewer examples before mirrorkit gets them."
            )
    try:
        parts = _run(function, pick(whole, slice(half)), pick(whole, slice(half, None)))
    except Exception as error:
        raise RecipeError(
            f"map works on {2 * half} rows of the set, but fails on {half} of them: {error}. {_CURE}"
        ) from error
    found = _difference(made, {path: np.concatenate([part[path] for part in parts]) for path in made})
    if found and _difference(made, *_run(function, whole, seed=2)):
        _log.warning(
            "map draws random numbers that do not depend on the recipe's seed: another number of workers or devices, "
            "and a resumed run, draw others. augment= draws the same ones everywhere."
        )
        (beside,) = _run(function, tf.nest.map_structure(lambda array: np.concatenate([array[:half]] * 2), whole))
        found = _difference(pick(made, slice(half)), pick(beside, slice(half)))
        if found and _difference(made, *_run(function, whole)):
            return  # what it draws is fixed by no seed of a graph
    if found:
        raise RecipeError(f"map returns a different result for a row when other rows are beside it: {found}. {_CURE}")


def _run(function: Callable[..., Any], *elements: Any, seed: int = 1) -> list[Made]:
    """Return the tensors that a newly traced function makes of each element, by their paths."""
    traced = tf.function(function)

    @tf.function(autograph=False)
    def seeded(element: Any) -> Any:
        tf.compat.v1.get_default_graph().seed = seed  # the graph of `traced` inherits it
        return traced(*element)

    results = [leaves("", seeded(element)) for element in elements]
    return [{path: leaf.numpy() for path, leaf in result if isinstance(leaf, tf.Tensor)} for result in results]


def _difference(one: Made, other: Made) -> str | None:
    """Return which part of two results differs by more than rounding; or None."""
    for path, array in one.items():
        rounding = _ROUNDING.get(array.dtype.name)
        if rounding is None or array.shape != other[path].shape:
            same = np.array_equal(array, other[path])
        else:
            wide, wide_other = array.astype(np.float64), other[path].astype(np.float64)
            largest = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
            same = np.allclose(wide, wide_other, rtol=0.0, atol=rounding * largest, equal_nan=True)
        if not same:
            return f"result{path}"
    return None
