"""One pass through the model as a pure function: nothing is assigned, and what the pass wanted to assign is seen.

Keras's own `stateless_call` returns new values of the non-trainable variables and drops every other assignment. It also
bypasses the model's `__call__`, which Keras's `fit` does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.tracing import foreign_state
from mirrorkit.train.step.keras_operations import without_waits
from mirrorkit.train.step.layer_state import layers_of, training_argument
from mirrorkit.train.step.seeds import seeds_on_host


def call_model(
    model: KerasModel, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], x: Nest, *, training: bool
) -> tuple[Nest, list[tf.Tensor], list[tf.Tensor]]:
    """Call a model with these values of its trainable (`weights`) and non-trainable variables (`state`).

    Returns the outputs, the new values of the non-trainable variables (the same tensor where nothing was assigned), and
    what regularisers and `add_loss` add to the loss. Refuses a pass that assigns a trainable weight, or a variable that
    is not the model's.
    """
    given = list(zip(model.trainable_variables, weights, strict=True))
    given += zip(model.non_trainable_variables, state, strict=True)
    scope = keras.StatelessScope(state_mapping=given, collect_losses=True)
    with seeds_on_host(), without_waits(), scope:
        before = dict(scope.state_mapping)
        outputs = model(x, **training_argument(model, training))
        added = list(model.losses)
    _require_kept(model, {key for key, value in scope.state_mapping.items() if value is not before.get(key)})
    return outputs, [scope.get_current_value(variable) for variable in model.non_trainable_variables], added


def predict_with(model: KerasModel, x: Nest) -> Nest:
    """Return the model's outputs for `x`, as Keras's `predict` does."""
    with seeds_on_host(), without_waits():
        return model(x, **training_argument(model, False))


def _require_kept(model: KerasModel, assigned: set[int]) -> None:
    """Refuse a pass that assigned variables (by their `id`) which the update would not write."""
    for variable in model.trainable_variables:
        if id(variable) in assigned:
            raise StepError(
                f"A layer assigns its own trainable weight {variable.path!r} in its call; an update takes gradients "
                "only, so the assignment would be lost. Make the weight non-trainable "
                "(add_weight(..., trainable=False)), or use a constraint such as keras.constraints.MaxNorm."
            )
    kept = {id(variable) for variable in model.non_trainable_variables}
    for layer in reversed(layers_of(model)):  # a layer comes after those that hold it
        for variable in layer.metrics_variables:
            if id(variable) in assigned - kept:
                metric = variable.path.split("/")[-2] if "/" in variable.path else variable.path
                raise StepError(
                    f"The layer {layer.name!r} updates the metric {metric!r} in its call, which a step does not write: "
                    "the metric would stay at zero. If it compares outputs with targets, give it to Step(..., "
                    "metrics=[...]). If it measures something within the model, return that, a value for each example, "
                    "as another output, without a loss: loop.predict gives the values. For their mean in the logs, let "
                    f"the data have any targets for it: metrics={{{metric!r}: [lambda y, value: value]}}."
                )
    if assigned - kept:
        raise foreign_state(_paths(model, assigned - kept) or ["a Keras variable that is assigned in a call"])


def _paths(model: KerasModel, wanted: set[int]) -> list[str]:
    """Return the paths of those variables that are attributes of layers."""
    attributes = [value for layer in layers_of(model) for value in vars(layer).values()]
    single = [one for value in attributes for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [one.path for one in single if isinstance(one, keras.Variable) and id(one) in wanted]
