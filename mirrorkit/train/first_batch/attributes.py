"""Plain Python attributes of a user's layers, metrics and losses: what their code counts there while it is checked."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mirrorkit._keras import keras

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


@contextmanager
def attributes_kept(objects: Iterable[Any]) -> Iterator[None]:
    """Give back numbers, texts, and lists and dicts of them, as they were before the block.

    Not those of Keras's own classes, which note there what they have built.
    """
    own = [one for one in objects if hasattr(one, "__dict__") and not type(one).__module__.startswith("keras.")]
    before = [(one, {n: _copy(v) for n, v in vars(one).items() if n not in _of_keras() and _is_kept(v)}) for one in own]
    try:
        yield
    finally:
        for one, values in before:
            for name, value in values.items():
                _give_back(vars(one), name, value)


def _is_kept(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(one, _PLAIN) for one in value.values())
    return all(isinstance(one, _PLAIN) for one in value) if isinstance(value, list) else isinstance(value, _PLAIN)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


def _give_back(attributes: dict[str, Any], name: str, value: Any) -> None:
    now = attributes.get(name)
    if isinstance(value, dict) and isinstance(now, dict):
        if now != value:
            now.clear()
            now.update(value)
    elif isinstance(value, list) and isinstance(now, list):
        if len(now) != len(value) or any(one is not other for one, other in zip(now, value, strict=True)):
            now[:] = value
    else:
        attributes[name] = value


@functools.cache
def _of_keras() -> frozenset[str]:
    """Return the attributes that Keras's base classes have."""
    bases = (keras.Model(), keras.layers.Layer(), keras.metrics.Mean(), keras.losses.Loss())
    return frozenset({"built"}.union(*map(vars, bases)))
