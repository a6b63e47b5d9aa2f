"""Operations follow their variables: where a placed model computes.

A step is a pure function of its variables' values, which TensorFlow traces. While it is traced, a *device function*
(`tf.compat.v1.device`) is asked for the device of each new operation:

* one that reads a placed weight goes to that weight's device;
* any other stays where its inputs are, or without placed inputs beside the operation before it;
* the backward operation of a forward one, which TensorFlow names `gradient_tape/<forward name>`, goes where that is.

So only variables are given devices, and forward pass, backward pass and update follow. The model is not rewritten.
Where TensorFlow should name backward operations otherwise one day, results stay the same and these operations follow
their inputs; `tests/parallel/test_placed_training.py` counts what ran on which device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import tensorflow as tf

from mirrorkit._types import Nest

_BACKWARD = "gradient_tape/"
_Key = tuple[tf.Graph, str]  # an operation: its graph and its name

# The devices of a function's arguments: tensors, each with the name of the device where it lies.
Placed = Callable[..., Iterable[tuple[tf.Tensor, str]]]


def follow_variables(function: Callable[..., Nest], placed: Placed, first: str) -> Callable[..., Nest]:
    """Return `function` such that what it traces follows its arguments.

    Args:
        function: a pure function of tensors, to be traced by `tf.function`.
        placed: called with the same arguments, returns those that are placed and their devices; the others have no say.
        first: the device to begin on.
    """

    @functools.wraps(function)  # a graph's functions have the names of Python's
    def placed_function(*args: Nest) -> Nest:
        graph = tf.compat.v1.get_default_graph()
        devices = {(graph, tensor.op.name): device for tensor, device in placed(*args)}
        with tf.compat.v1.device(_Follow(devices, first)):
            return function(*args)

    return placed_function


class _Follow:
    """The device function of one trace; it remembers where each operation went."""

    def __init__(self, placed: dict[_Key, str], first: str) -> None:
        self._device_of = placed
        self._weights = set(placed)  # placed arguments, and what is made of nothing else: a cast kernel
        self._last = first

    def __call__(self, op: tf.Operation) -> str:
        if op.device or op.type == "Placeholder":  # what must be on the host is no example for others
            return op.device
        key = (op.graph, op.name)
        device = self._of_forward(op) or self._of_inputs(op, key)
        if not device:
            return self._last
        self._device_of[key] = self._last = device
        return device

    def _of_forward(self, op: tf.Operation) -> str:
        """Return the device of the forward operation: of dense/MatMul for gradient_tape/dense/MatMul/MatMul_1."""
        if op.name.startswith(_BACKWARD):
            parts = op.name.removeprefix(_BACKWARD).split("/")
            for end in range(len(parts) - 1, 0, -1):
                if found := self._device_of.get((op.graph, "/".join(parts[:end]))):
                    return found
        return ""

    def _of_inputs(self, op: tf.Operation, key: _Key) -> str:
        """Return the device of the weights among the inputs; without any, that of the largest input.

        Of inputs of one size the last device counts, so that a residual sum moves on with its block.
        """
        sources = [(self._source(tensor), tensor) for tensor in op.inputs]
        placed = [(source, tensor) for source, tensor in sources if source in self._device_of]
        weights = [(source, tensor) for source, tensor in placed if source in self._weights]
        others = [tensor for source, tensor in sources if source not in self._weights and not _is_constant(tensor)]
        if weights and not others:
            self._weights.add(key)
        votes = [(_size(tensor), self._device_of[source]) for source, tensor in weights or placed]
        return max(votes, default=(0, ""))[1]

    def _source(self, tensor: tf.Tensor) -> _Key:
        """Return the operation that a tensor is from; inside of a loop's body, from which it was captured."""
        while tensor.op.type == "Placeholder" and (tensor.graph, tensor.op.name) not in self._device_of:
            outside = [outer for outer, inner in getattr(tensor.graph, "captures", []) if inner is tensor]
            if not outside:
                break
            tensor = outside[0]
        return tensor.graph, tensor.op.name


def _is_constant(tensor: tf.Tensor) -> bool:
    return not tensor.op.inputs and tensor.op.type != "Placeholder"


def _size(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() or 1
