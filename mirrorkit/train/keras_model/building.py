"""Build what Keras's `fit` builds from its first batch: a Sequential without an Input, a subclassed model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Spec
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.calling import placeholders
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument
from mirrorkit.train.keras_model.models import Models
from mirrorkit.train.keras_model.outputs import UnpackedBatch, in_floatx


def is_built(model: KerasModel) -> bool:
    """Whether every layer has its variables, so that no batch is needed to create them; as Keras's `fit` asks."""
    return not isinstance(model, keras.layers.Layer) or all(layer.built for layer in layers_of(model))


def any_rows(x: Spec) -> Spec:
    """Return specs of as many rows as there may be."""
    return tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), x)


def build(model: KerasModel, batch: UnpackedBatch, strategy: tf.distribute.Strategy) -> None:
    """Create the variables of a model, in the scope, as a call on such a batch does.

    Nothing is computed and no random number is drawn but for the initial weights, which are those of Keras's `fit`.
    Layers that the call does not reach stay as they are.

    Args:
        model: one that is not built.
        batch: specs of what the model is called on, of targets and of weights.
        strategy: that of the training.
    """
    require_in_scope(model, strategy)
    graph = private.get("__internal__.FuncGraph")("build")
    try:
        with created_in(strategy), ambient.set(inlines=True), graph.as_default():
            x = placeholders(any_rows(in_floatx(batch.x)))
            for training in (False, True):  # as Keras's `fit`; some layers are called in training alone
                if not is_built(model):
                    model(x, **training_argument(model, training))
    except StepError:
        raise
    except Exception as error:  # whatever a model may raise
        called = "loss_fn" if isinstance(model, Models) else f"the model {model.name!r}"
        raise StepError(
            f"The model {model.name!r} is not built, and a batch of the data does not build it: {called}, called on "
            f"{_shapes(batch.x)}, failed with {type(error).__name__}: {error} Let the data yield batches and "
            "know their shapes (tf.ensure_shape in dataset.map), or call each model on one batch in the strategy's "
            "scope first: `with strategy.scope(): model(x)`."
        ) from error


IN_SCOPE = (
    "Inside `with strategy.scope():` create model and optimizer, load_model, and do what makes a layer's variables if "
    "it has none yet: `build`, `adapt`, the first call."
)


def require_in_scope(model: KerasModel, strategy: tf.distribute.Strategy) -> None:
    """Refuse a model that was created outside of the strategy's scope, where its variables would be too."""
    for part in model.parts if isinstance(model, Models) else [model]:
        if isinstance(part, keras.Model) and part.distribute_strategy is not strategy:
            raise StepError(
                f"The model {part.name!r} was not created in the scope of this {class_name(strategy)}. {IN_SCOPE}"
            )


@contextmanager
def created_in(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Create variables in a strategy's scope within the block, and do nothing else there."""
    creating = False

    def create(next_creator: Callable[..., tf.Variable], **given: Any) -> tf.Variable:
        nonlocal creating
        if creating:
            return next_creator(**given)
        creating = True
        try:
            with strategy.scope():
                return tf.Variable(**given)
        finally:
            creating = False

    with tf.variable_creator_scope(create):
        yield


def _shapes(x: Spec) -> str:
    return ", ".join(f"{spec.dtype.name} {list(spec.shape)}" for spec in tf.nest.flatten(x))
