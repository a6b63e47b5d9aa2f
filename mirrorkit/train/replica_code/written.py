"""Which variables a model's own step writes: those that Keras does not know would be in no checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorkit._types import ConcreteFunction, Variable
from mirrorkit.errors import StepError
from mirrorkit.variables import copies, path

_READING = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


def require_known(traced: ConcreteFunction, known: Sequence[Variable]) -> None:
    """Refuse a step that writes a `tf.Variable` which is not among these variables, each of them one of Keras's."""
    handles = {id(copy.handle) for variable in known for copy in copies(variable)}
    inside = {id(outer): inner for outer, inner in traced.graph.captures}
    for variable in traced.graph.variables:
        handle = variable.handle
        if id(handle) in handles or id(handle) not in inside:
            continue
        writing = [op.type for op in inside[id(handle)].consumers() if op.type not in _READING]
        if writing:
            raise StepError(
                f"The model's train_step writes the tf.Variable {path(variable)!r}, which Keras does not know: "
                "replicas would drift apart, and no checkpoint would hold it. Make it with self.add_weight(..., "
                "trainable=False), or as a keras.Variable of the model."
            )
