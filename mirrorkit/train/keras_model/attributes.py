"""Plain Python attributes of a user's models, layers, metrics and losses: what their code counts there."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


def plain_attributes(one: Any) -> dict[str, Any]:
    """Return the numbers, texts, and lists and dicts of them, also nested, among what an object has of its own."""
    return {name: value for name, value in vars(one).items() if name not in _of_keras() and _is_plain(value)}


def written_attributes(model: KerasModel) -> dict[str, str]:
    """Return a model's plain attributes, but for private ones, written out."""
    return {name: repr(value) for name, value in plain_attributes(model).items() if not name.startswith("_")}


def changed_attributes(model: KerasModel, before: Mapping[str, str]) -> list[str]:
    """Return the names of those that are no longer what `written_attributes` told before."""
    after = written_attributes(model)
    changed = [name for name, text in after.items() if before.get(name) != text]
    # A list to which a tensor was appended is plain no more.
    return changed + [name for name in before.keys() - after.keys() if isinstance(vars(model)[name], (list, dict))]


@contextmanager
def attributes_kept(objects: Iterable[Any]) -> Iterator[None]:
    """Give back plain attributes as they were before the block.

    Not those of Keras's own classes, which note there what they have built.
    """
    own = [one for one in objects if hasattr(one, "__dict__") and not type(one).__module__.startswith("keras.")]
    before = [(one, _copied(plain_attributes(one))) for one in own]
    try:
        yield
    finally:
        for one, values in before:
            attributes = vars(one)
            for name, value in values.items():
                attributes[name] = _given_back(attributes.get(name), value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """Return a value with lists and dicts of its own, which Keras does not track."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _given_back(now: Any, before: Any) -> Any:
    """Return what an attribute was before; the list or dict that it is now, if that is one, with the old content."""
    if isinstance(before, dict) and isinstance(now, dict):
        content: Any = {key: _given_back(now.get(key), one) for key, one in before.items()}
        if not _same(now, content):
            now.clear()
            now.update(content)
        return now
    if isinstance(before, list) and isinstance(now, list):
        known = [*now[: len(before)], *[None] * (len(before) - len(now))]
        content = [_given_back(one, old) for one, old in zip(known, before, strict=True)]
        if not _same(dict(enumerate(now)), dict(enumerate(content))):
            now[:] = content
        return now
    return before


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one.keys() == other.keys() and all(one[key] is other[key] for key in one)


@functools.cache
def _of_keras() -> frozenset[str]:
    """Return the attributes that Keras's base classes have."""
    # With names, of which Keras counts those that it gives; and none that makes variables: this may be in a graph.
    kinds = (keras.Model, keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss)
    bases = [kind(name="base") for kind in kinds]
    return frozenset({"built"}.union(*map(vars, bases)))
