"""What a model's own step reads and writes: no `tf.Variable`s of which Keras knows nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, Variable
from mirrorkit.errors import StepError
from mirrorkit.variables import copies, path

_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def require_known(traced: ConcreteFunction, known: Sequence[Variable]) -> None:
    """Refuse a step that writes a variable which is not `known`."""
    own = {id(copy.handle) for variable in known for copy in copies(variable)}
    for variable in _captured(traced, read_only=False):
        if id(variable.handle) not in own:
            raise StepError(
                f"Training writes the variable {path(variable)!r}, which is not part of the model: replicas would "
                "drift apart, and no checkpoint would hold it. In place of a tf.Variable write self.add_weight(..., "
                "trainable=False), and make a layer or generator an attribute of the model or of a layer in it."
            )


def read_variables(traced: ConcreteFunction, updated: Sequence[Variable]) -> list[tf.Variable]:
    """Return the variables that a step reads and does not write, but for those that its optimizers update."""
    of_optimizers = {id(copy.handle) for copy in itertools.chain.from_iterable(map(copies, updated))}
    return [variable for variable in _captured(traced, read_only=True) if id(variable.handle) not in of_optimizers]


def _captured(traced: ConcreteFunction, *, read_only: bool) -> Iterator[tf.Variable]:
    """Yield the variables that a step uses: those that it only reads, or those that it writes."""
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    for variable in traced.graph.variables:
        handle = inside.get(id(variable.handle))
        if handle is not None and all(op.type in _READING for op in handle.consumers()) == read_only:
            yield variable
