"""The `tf.Variable`s of a model, of which Keras knows nothing, and which of them its own step writes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, KerasModel, Variable
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.models import flatten
from mirrorkit.variables import copies, path

_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def plain_variables(model: KerasModel) -> list[tf.Variable]:
    """Return the `tf.Variable`s that are attributes of a model or of a layer in it, or in lists or dicts there."""
    leaves = (leaf for layer in layers_of(model) for value in vars(layer).values() for leaf in flatten(value))
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, tf.Variable)}.values())


def written_variables(
    traced: ConcreteFunction, known: Sequence[Variable], plain: Sequence[tf.Variable]
) -> list[tf.Variable]:
    """Return which of the `plain` variables a step writes; refuse one that writes any that is not `known` either."""
    owners = {id(copy.handle): variable for variable in (*known, *plain) for copy in copies(variable)}
    keras_own = set(map(id, known))
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    found: dict[int, tf.Variable] = {}
    for variable in traced.graph.variables:
        handle = id(variable.handle)
        if handle not in inside or all(op.type in _READING for op in inside[handle].consumers()):
            continue
        if handle not in owners:
            raise StepError(
                f"The model's train_step writes the variable {path(variable)!r}, which is none of the model's: "
                "replicas would drift apart, and no checkpoint would hold it. Make the layer, generator or variable an "
                "attribute of the model or of a layer in it."
            )
        if id(owners[handle]) not in keras_own:
            found[id(owners[handle])] = owners[handle]
    return list(found.values())
