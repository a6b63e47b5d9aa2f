"""One pass through the model as a pure function: nothing is assigned, and what the pass wanted to assign is seen.

Keras's own `stateless_call` returns new values of the non-trainable variables and drops every other assignment. It also
bypasses the model's `__call__`, which Keras's `fit` does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.custom_gradients import with_weights
from mirrorkit.train.keras_model.inlining import functions_inlined
from mirrorkit.train.keras_model.kept import kept_by
from mirrorkit.train.keras_model.keras_operations import without_waits
from mirrorkit.train.keras_model.layer_state import is_generator, layers_of, training_argument
from mirrorkit.train.keras_model.seeds import seeds_on_host
from mirrorkit.train.reduce.one_replica import one_replica
from mirrorkit.train.reduce.switching import keeping
from mirrorkit.train.reduce.tracing import foreign_state
from mirrorkit.variables import ValueScope


def call_model(
    model: KerasModel, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], x: Nest, *, training: bool
) -> tuple[Nest, list[tf.Tensor], list[tuple[Any, tf.Tensor]]]:
    """Call a model with these values of its trainable (`weights`) and non-trainable variables (`state`).

    Returns the outputs, the new values of the non-trainable variables (the same tensor where nothing was assigned), and
    what layers add to the loss by `add_loss` and regularizers of their activity, each with the layer. Refuses a pass
    that assigns a trainable weight, or a variable that is not the model's.
    """
    given = list(zip(model.trainable_variables, weights, strict=True))
    given += zip(model.non_trainable_variables, state, strict=True)
    scope = Scope(state_mapping=given, collect_losses=True)
    with (
        one_replica(),
        seeds_on_host(),
        without_waits(),
        functions_inlined(),
        keeping(kept_by(layers_of(model))),
        scope,
    ):
        before = dict(scope.state_mapping)
        outputs = read(model(x, **training_argument(model, training)))
        added = [(_adding(model, loss), loss) for loss in scope.losses]
    assigned = {key for key, value in scope.state_mapping.items() if value is not before.get(key)}
    _require_kept(model, {key: scope.paths.get(key, "?") for key in assigned})
    return outputs, [_shaped(scope.get_current_value(v), v) for v in model.non_trainable_variables], added


def _adding(model: KerasModel, loss: tf.Tensor) -> Any:
    """Return the innermost layer that has added a loss."""
    for layer in reversed(layers_of(model)):
        if any(own is loss for own in layer.losses):
            return layer
    return model


def placeholders(like: Nest) -> Nest:
    """Return tensors of the graph that is traced, in place of variables or specs."""

    def placeholder(one: Any) -> Any:
        return None if one is None else tf.compat.v1.placeholder(one.dtype, one.shape)

    return tf.nest.map_structure(placeholder, like)


def _shaped(value: tf.Tensor, variable: KerasVariable) -> tf.Tensor:
    """Return a new value with the variable's shape, which a batch of unknown size leaves open; others as they are."""
    return value if value.shape.is_fully_defined() else tf.ensure_shape(value, variable.shape)


def read(values: Nest) -> Nest:
    """Return tensors in place of variables; call it while these stand for the values that they were given."""
    return tf.nest.map_structure(lambda one: one.value if isinstance(one, keras.Variable) else one, values)


class Scope(ValueScope):
    """One that knows an assigned variable by its id, and also its path."""

    def __init__(self, **options: Any) -> None:
        with_weights()
        super().__init__(**options)
        self.paths: dict[int, str] = {}
        self._graph = tf.compat.v1.get_default_graph()

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Note the variable, and let Keras keep its new value; refuse draws that each round of a loop would repeat."""
        if is_generator(update[0]) and in_loop(self._graph):
            raise StepError(
                f"A SeedGenerator ({update[0].path}) draws within a loop (tf.while_loop, an RNN's cell). In a step "
                "each iteration would draw the same numbers. Draw the numbers of all iterations before the loop, or "
                "let Python unroll it (`for`, RNN(unroll=True))."
            )
        self.paths[id(update[0])] = update[0].path
        super().add_update(update)


def in_loop(around: tf.Graph) -> bool:
    """Return whether the graph that is being traced is, within `around`, the body of a loop."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not around:
        if "WhileBody" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@contextmanager
def with_values(
    model: KerasModel, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor]
) -> Iterator[dict[int, str]]:
    """Let the model's variables have these values within the block, which assigns none.

    The block is given a dict that has at its end the path of each variable, by its id, that it wanted to assign.
    """
    given = [*zip(model.trainable_variables, weights, strict=True)]
    given += zip(model.non_trainable_variables, state, strict=True)
    with one_replica(), functions_inlined(), Scope(state_mapping=given) as scope:
        yield scope.paths


def predict_with(model: KerasModel, x: Nest) -> Nest:
    """Return the model's outputs for `x`, as Keras's `predict` does."""
    return predicting(lambda: read(model(x, **training_argument(model, False))))


def predicting(predict: Callable[[], Nest]) -> Nest:
    """Call what predicts, as a pass through a model is made."""
    with one_replica(), seeds_on_host(), without_waits(), functions_inlined():
        return predict()


def require_assignable(model: KerasModel, assigned: Mapping[int, str]) -> None:
    """Refuse a pass that assigned a weight; `assigned` has each variable's path by its `id`."""
    for variable in model.trainable_variables:
        if id(variable) in assigned:
            raise StepError(
                f"A layer assigns its own trainable weight {variable.path!r} in its call; an update takes gradients "
                "only, so the assignment would be lost. Make the weight non-trainable "
                "(add_weight(..., trainable=False)), or use a constraint such as keras.constraints.MaxNorm."
            )


def _require_kept(model: KerasModel, assigned: Mapping[int, str]) -> None:
    """Refuse a pass that assigned what the update would not write."""
    require_assignable(model, assigned)
    metrics = itertools.chain(*(layer.metrics_variables for layer in layers_of(model)))
    kept = {id(variable) for variable in [*model.non_trainable_variables, *metrics]}
    lost = {key: path for key, path in assigned.items() if key not in kept}
    if lost:
        raise foreign_state([f"the Keras variable {path!r} (assigned in a call)" for path in lost.values()])
