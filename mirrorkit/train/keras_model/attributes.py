"""Plain Python attributes of a user's models, layers, metrics and losses: what their code counts there."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


def plain_attributes(one: Any, *kinds: type) -> dict[str, Any]:
    """Return the numbers, texts, and lists and dicts of them, also nested, among what an object has of its own.

    Values of further `kinds` count as plain too.
    """
    known: tuple[Any, ...] = (*_PLAIN, *kinds)
    return {name: value for name, value in vars(one).items() if name not in _of_keras() and _is_plain(value, known)}


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
    before = [(vars(one), plain_attributes(one)) for one in own]
    contents = list(contents_of([values for _, values in before]))
    try:
        yield
    finally:
        for attributes, values in before:
            attributes.update(values)
        put_contents_back(contents)


def put_contents_back(contents: Iterable[tuple[Any, Any]]) -> None:
    """Give lists and dicts the contents that `contents_of` copied."""
    for container, content in contents:
        if _ids(container) == _ids(content):  # Keras's and TensorFlow's own note that they were written
            continue
        if isinstance(container, dict):
            container.clear()
            container.update(content)
        else:
            container[:] = content


def _is_plain(value: Any, kinds: tuple[Any, ...] = _PLAIN) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one, kinds) for one in value)
    return isinstance(value, kinds) and not isinstance(value, tf.Variable)


def contents_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each list and dict in a value, and a copy of it."""
    if isinstance(value, (dict, list)):
        yield value, dict(value) if isinstance(value, dict) else list(value)
    if isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from contents_of(one)


def _ids(container: Any) -> list[tuple[Any, int]]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return [(key, id(one)) for key, one in items]


@functools.cache
def _of_keras() -> frozenset[str]:
    """Return the attributes that Keras's base classes have."""
    # With names, of which Keras counts those that it gives; and none that makes variables: this may be in a graph.
    kinds = (keras.Model, keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss)
    bases = [kind(name="base") for kind in kinds]
    return frozenset({"built"}.union(*map(vars, bases)))
