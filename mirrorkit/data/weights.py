"""Examples that are drawn by weights, so that a rare class comes as often as the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirrorkit.errors import RecipeError


def example_weights(weights: Any, labels: Any, number: int) -> np.ndarray:
    """Return a weight for each example, float64 [number].

    Args:
        weights: of the examples, or of the classes: a dict, or "balanced".
        labels: of the examples, as the split has them; None where they are not in memory.
        number: of the examples.

    Raises:
        RecipeError: weights that are none, or that do not fit the examples or their labels.
    """
    if isinstance(weights, (str, Mapping)):
        return _by_class(weights, labels)
    found = _numbers(weights)
    if found.shape != (number,):
        raise RecipeError(f"weights has the shape {list(found.shape)}, but there are {number} examples: give one each.")
    _require_weights(found, range(number))
    return found / found.max()


def _require_weights(found: np.ndarray, names: Sequence[Any]) -> None:
    """Refuse what are no weights, by the number of the example or by the class."""
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        raise RecipeError(f"weights[{names[wrong[0]]}] is {found[wrong[0]]}; a weight must be finite, and 0 or more.")
    if not found.any():
        raise RecipeError("All weights are 0, so no example can be drawn. Give at least one a weight.")


def _numbers(weights: Any) -> np.ndarray:
    try:
        return np.array(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"weights must be numbers: {error}.") from None


def _by_class(weights: str | Mapping[Any, float], labels: Any) -> np.ndarray:
    if isinstance(weights, str) and weights != "balanced":
        raise RecipeError(f"weights={weights!r} was asked for; choose 'balanced', a dict of classes, or numbers.")
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise RecipeError(
            f"weights={weights!r} is by class, but the labels are no class indices in memory (integers [N]). Give a "
            "weight for each example."
        )
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    of_classes = dict.fromkeys(classes.tolist(), 1.0) if isinstance(weights, str) else weights
    missing = [one for one in classes.tolist() if one not in of_classes]
    if missing:
        raise RecipeError(f"weights has none for the class {missing[0]}. Give it one, or 0 to leave it out.")
    shares = _numbers([of_classes[one] for one in classes.tolist()])
    _require_weights(shares, classes.tolist())
    found: np.ndarray = (shares / counts)[places]
    return found / found.max()


def drawn(weights: np.ndarray, count: int, *, replacement: bool, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of `count` examples in the order in which they are drawn, int64 [count].

    Without replacement it is as if one was drawn after the other, each time among those that are left (Efraimidis and
    Spirakis, Weighted random sampling with a reservoir, 2006).
    """
    if replacement:
        ends = np.cumsum(weights)
        found = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
        return np.minimum(found, np.flatnonzero(weights)[-1])  # a product may be rounded up to the end
    with np.errstate(divide="ignore"):
        turns = rng.standard_exponential(len(weights)) / weights  # never, where the weight is 0
    return np.argsort(turns, kind="stable")[:count]
