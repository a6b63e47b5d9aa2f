"""What a model's own step reads and writes, also of the `tf.Variable`s of which Keras knows nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, KerasModel, Variable
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.layer_state import layers_of, operations_of
from mirrorkit.train.keras_model.models import flatten
from mirrorkit.variables import copies, mark_named, path

_WRITING = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def plain_variables(model: KerasModel) -> list[tf.Variable]:
    """Return the `tf.Variable`s that are attributes of a model or of a layer in it, or in lists or dicts there.

    They are called by these names from then on.
    """
    found: dict[int, tf.Variable] = {}
    for layer in layers_of(model):
        for attribute, value in vars(layer).items():
            for leaf in flatten(value) if not attribute.startswith("_self_") else []:  # TensorFlow's own lists
                if isinstance(leaf, tf.Variable) and id(leaf) not in found:
                    found[id(leaf)] = mark_named(leaf, f"{layer.name}.{attribute}")
    return list(found.values())


def written_variables(
    traced: ConcreteFunction, known: Sequence[Variable], plain: Sequence[tf.Variable]
) -> list[tf.Variable]:
    """Return which of the `plain` variables a step writes; refuse one that writes any that is not `known` either."""
    owners = {id(copy.handle): variable for variable in (*known, *plain) for copy in copies(variable)}
    keras_own = set(map(id, known))
    found: dict[int, tf.Variable] = {}
    for variable in _captured(traced, read_only=False):
        handle = id(variable.handle)
        if handle not in owners:
            raise StepError(
                f"Training writes the variable {path(variable)!r}, which is not part of the model, but perhaps of a "
                "loss: replicas would drift apart, and no checkpoint would hold it. Make the layer, generator or "
                "variable an attribute of the model or of a layer in it."
            )
        if id(owners[handle]) not in keras_own:
            found[id(owners[handle])] = owners[handle]
    return list(found.values())


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


def require_not_read_again(traced: ConcreteFunction, variables: Sequence[tf.Variable], rows: int) -> None:
    """Refuse a step that reads one of these variables after it has written there what it computed from the batch.

    It would read what this replica's rows have given; those of Keras have the value of all rows by then.

    Args:
        traced: the step.
        variables: of TensorFlow, which it writes.
        rows: how many of its arguments are of the batch; they come first.
    """
    order = {op: number for number, op in enumerate(traced.graph.get_operations())}
    batch = {one.op for one in traced.graph.inputs[:rows]}
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    for variable in variables:
        for handle in (inside[id(copy.handle)] for copy in copies(variable) if id(copy.handle) in inside):
            uses = sorted(handle.consumers(), key=lambda op: order[op])
            writes = (i for i, op in enumerate(uses) if op.type not in _READING and operations_of(op.inputs) & batch)
            if any(op.type not in _WRITING for op in uses[next(writes, len(uses)) + 1 :]):
                raise StepError(
                    f"The model's train_step writes the tf.Variable {path(variable)!r} and reads it again: on several "
                    "replicas it would read a value of this replica's rows only. Make it with self.add_weight(..., "
                    "trainable=False): then the value read is that of all rows."
                )
