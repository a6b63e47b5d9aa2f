"""A model's code on one replica's rows, and one pass through a model as a pure function.

In such a pass nothing is assigned, and what it wanted to assign is seen. Keras's own `stateless_call` returns new
values of the non-trainable variables and drops every other assignment. It also bypasses the model's `__call__`, which
Keras's `fit` does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasLayer, KerasModel, KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.attributes import contents_of, plain_attributes, put_contents_back
from mirrorkit.train.keras_model.layer_state import is_generator, layers_of, training_argument
from mirrorkit.variables import ValueScope

_TENSORS = tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices


@contextmanager
def running(model: KerasModel | None, values: Any = None, **more: Any) -> Iterator[None]:
    """Run a model's code as that of one replica: here all is put together that such code needs around it.

    Args:
        model: whose layers may keep tensors of a trace; None where the code is not one model's.
        values: the scope in which Keras reads and assigns variables; None for the variables themselves.
        more: what a pass wants besides; see `Ambient`.
    """
    given: dict[str, Any] = {"alone": True, "inlines": True, "on_device": True, "seeds_on_host": True}
    if model is not None:
        given["save"] = _kept_by(layers_of(model))
    with _policy_of_the_program(), ambient.set(**given | more), values or contextlib.nullcontext():
        yield


@contextmanager
def _policy_of_the_program() -> Iterator[None]:
    """Let code that asks for Keras's dtype policy get it: Keras keeps one for each thread."""
    before = keras.config.dtype_policy()
    if before.name == keras.config.floatx():  # as in a thread in which nobody has set one
        for policy in ambient.policy:
            keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _kept_by(layers: Sequence[KerasLayer]) -> Callable[[], Callable[[], None]]:
    """Return what saves the attributes of a user's layers, and which losses each layer has added; see `switching`."""
    # Keras's own layers keep nothing over a message.
    users = [layer for layer in layers if not type(layer).__module__.startswith("keras.")]

    def save() -> Callable[[], None]:
        kept = [plain_attributes(layer, *_TENSORS) for layer in users]
        contents = list(contents_of(kept))
        # Private to Keras: in a stateless scope a layer knows by these which of the scope's losses are its own.
        losses = [set(layer._loss_ids) for layer in layers]

        def put_back() -> None:
            for layer, values in zip(users, kept, strict=True):
                vars(layer).update(values)
            put_contents_back(contents)
            for layer, own in zip(layers, losses, strict=True):
                layer._loss_ids.clear()
                layer._loss_ids.update(own)

        return put_back

    return save


def adding_layer(model: KerasModel, loss: tf.Tensor) -> Any:
    """Return the innermost layer that has added a loss; within the scope of the pass."""
    for layer in reversed(layers_of(model)):
        if any(own is loss for own in layer.losses):
            return layer
    return model


def placeholders(like: Nest) -> Nest:
    """Return tensors of the graph that is traced, in place of variables or specs."""

    def placeholder(one: Any) -> Any:
        return None if one is None else tf.compat.v1.placeholder(one.dtype, one.shape)

    return tf.nest.map_structure(placeholder, like)


def read(values: Nest) -> Nest:
    """Return tensors in place of variables; call it while these stand for the values that they were given."""
    return tf.nest.map_structure(lambda one: one.value if isinstance(one, keras.Variable) else one, values)


class Scope(ValueScope):
    """One that knows what was assigned: each variable, and its value, in order."""

    def __init__(self, values: Iterable[tuple[KerasVariable, Any]]) -> None:
        super().__init__(state_mapping=list(values), collect_losses=True)
        self.assigned: list[tuple[KerasVariable, tf.Tensor]] = []
        self._graph = graph_of_now()

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Let Keras keep the new value, and note it; refuse draws that each round of a loop would repeat."""
        if is_generator(update[0]) and in_loop(self._graph):
            raise StepError(
                f"A SeedGenerator ({update[0].path}) draws within a loop (tf.while_loop, an RNN's cell). In a step "
                "each iteration would draw the same numbers. Draw the numbers of all iterations before the loop, or "
                "let Python unroll it (`for`, RNN(unroll=True))."
            )
        super().add_update(update)
        self.assigned.append((update[0], self.state_mapping[id(update[0])]))

    def assigned_but(self, known: Iterable[KerasVariable]) -> list[str]:
        """Return the paths of the assigned variables that are not among these."""
        ids = set(map(id, known))
        return list(dict.fromkeys(variable.path for variable, _ in self.assigned if id(variable) not in ids))


def graph_of_now() -> tf.Graph | None:
    """Return the graph that operations go into; None where they are run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def in_loop(around: tf.Graph | None) -> bool:
    """Return whether the graph that is being traced is, within `around`, the body of a loop."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not around:
        if "WhileBody" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def value_scope(model: KerasModel, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor]) -> Scope:
    """Return a scope in which a model's trainable and non-trainable variables have these values."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return Scope(zip(variables, [*weights, *state], strict=True))


def predict_with(model: KerasModel, x: Nest) -> Nest:
    """Return the model's outputs for `x`, as Keras's `predict` does."""
    with running(model):
        return read(model(x, **training_argument(model, False)))


def require_assignable(model: KerasModel, assigned: Collection[int]) -> None:
    """Refuse a pass that assigned a weight; `assigned` are the ids of variables."""
    for variable in model.trainable_variables:
        if id(variable) in assigned:
            raise StepError(
                f"A layer assigns its own trainable weight {variable.path!r} in its call; an update takes gradients "
                "only, so the assignment would be lost. Make the weight non-trainable "
                "(add_weight(..., trainable=False)), or use a constraint such as keras.constraints.MaxNorm."
            )
