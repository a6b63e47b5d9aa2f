"""Arguments of Keras's `fit`, `evaluate` and `predict` that a Loop's do not have: what to write in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from mirrorkit.data import Recipe
from mirrorkit.errors import StepError

P = ParamSpec("P")
R = TypeVar("R")

_LABELLED = "data = mk.data.batches(mk.data.arrays(x, y), global_batch_size={size}{shuffle})"
_INPUTS = "data = tf.data.Dataset.from_tensor_slices(x).batch({size})"

_CURES = {  # of arguments that say how to make batches, or what to return
    "batch_size": "The data has the batch size: mk.data.batches(..., global_batch_size=...) or dataset.batch(...).",
    "shuffle": "The data shuffles: mk.data.batches(..., shuffle=True) or dataset.shuffle(...).",
    "sample_weight": "The data has the weights: dataset elements (x, y, sample_weight).",
    "validation_split": "Split the arrays yourself, and pass the second part as validation_data=mk.data.batches(...).",
    "validation_batch_size": "The data has it: validation_data=mk.data.batches(..., global_batch_size=...).",
    "return_dict": "evaluate always returns a dict.",
    "verbose": "It prints nothing.",
    "callbacks": "It calls none; fit and evaluate do.",
}


def refuses_keras_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method of Loop refuse the arguments of Keras's method of that name, with what to write instead."""

    @functools.wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        _refuse(method.__name__, args[1:], options, known=method.__annotations__)
        return method(*args, **options)

    return checked


def _refuse(method: str, given: tuple[Any, ...], options: dict[str, Any], *, known: Any) -> None:
    """Refuse arrays, more than one thing without a name, and what only Keras's method takes."""
    data = given[0] if given else options.get("x", options.get("data"))
    others = {name: value for name, value in options.items() if name not in known and name in (*_CURES, "x", "y")}
    is_data = isinstance(data, (Recipe, tf.data.Dataset))
    if not others and len(given) < 2 and (is_data or not _are_arrays(data)):
        return
    named = [f"{name}={_kind(value)}" for name, value in others.items()]
    found = ", ".join([*map(_kind, given), *named])
    text = f"Loop.{method} takes one positional argument, the data: a recipe or a tf.data.Dataset; found {found}."
    if not is_data:
        size = others.get("batch_size", 256)
        shuffle = ", shuffle=True" if method == "fit" else ""
        made = (_INPUTS if method == "predict" else _LABELLED).format(size=size, shuffle=shuffle)
        raise StepError(f"{text} Turn arrays into a recipe: {made}; loop.{method}(data).")
    cures = [f"{name}: {_CURES[name]}" for name in others if name in _CURES]
    raise StepError(" ".join([text, f"Write loop.{method}(data, ...).", *cures]))


def _are_arrays(data: Any) -> bool:
    """Whether the data is arrays or nests of arrays; a generator, say, is for others to refuse."""
    return all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(data))


def _kind(value: Any) -> str:
    plain = isinstance(value, (bool, int, float, str))
    return repr(value) if plain else type(value).__name__
