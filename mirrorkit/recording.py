"""Record the inputs and outputs of each layer while a model runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras


@dataclass(eq=False)
class RecordedCall:
    """One call of a layer, or of another Keras operation in a functional model.

    Attributes:
        layer: the layer.
        inputs: its float input tensors.
        result: what it returned.
        outputs: its float output tensors, without those that a layer within it has already returned.
    """

    layer: Any
    inputs: list[tf.Tensor]
    result: Any
    outputs: list[tf.Tensor]

    @property
    def name(self) -> str:
        """The layer's name and class."""
        return f"{self.layer.name!r} ({type(self.layer).__name__})"


@contextmanager
def recorded() -> Iterator[list[RecordedCall]]:
    """Record all calls of Keras layers within the block, in the order in which they end: inner layers first.

    Keras has no hooks, so its one entry to every layer is wrapped for the duration of the block. Calls within a
    `tf.function` have no values yet and are left out.
    """
    calls: list[RecordedCall] = []
    seen: set[int] = set()  # of outputs; `calls` keeps them alive, so no id is used twice

    def call_and_record(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(layer, *args, **kwargs)
        outputs = [tensor for tensor in _floats(result) if id(tensor) not in seen]
        seen.update(map(id, outputs))
        calls.append(RecordedCall(layer, _floats((args, kwargs)), result, outputs))
        return result

    with private.replace("Operation.__call__", call_and_record):
        yield calls


def _floats(nest: Any) -> list[tf.Tensor]:
    return [
        value
        for value in keras.tree.flatten(nest)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating and not tf.is_symbolic_tensor(value)
    ]
