"""Build what Keras's `fit` builds from its first batch: a Sequential without an Input, a subclassed model."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument
from mirrorkit.train.keras_model.models import Models
from mirrorkit.train.keras_model.outputs import UnpackedBatch, in_floatx


def is_built(model: KerasModel) -> bool:
    """Whether every layer has its variables, so that no batch is needed to create them; as Keras's `fit` asks."""
    return not isinstance(model, keras.layers.Layer) or all(layer.built for layer in layers_of(model))


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
    try:
        with strategy.scope():
            outputs_of(model, in_floatx(batch.x))
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


def outputs_of(model: KerasModel, x: Spec) -> Nest:
    """Call a model on any number of rows without computing anything; returns its outputs as `keras.KerasTensor`s."""
    call = _Call(model)
    try:
        return call.compute_output_spec(symbolic(x))
    except Exception:
        if call.failure is None:
            raise
        raise call.failure from None  # without Keras's words about `_Call`


def symbolic(x: Spec) -> Nest:
    """Return `keras.KerasTensor`s of any number of rows."""
    return tf.nest.map_structure(lambda one: keras.KerasTensor((None, *one.shape[1:]), dtype=one.dtype.name), x)


class _Call(keras.Operation):  # type: ignore[name-defined, misc]
    """A call of a model; the model's own `compute_output_spec` may know its outputs without calling any layer."""

    def __init__(self, model: KerasModel) -> None:
        super().__init__(name="call")
        self._model = model
        self.failure: Exception | None = None

    def call(self, x: Nest) -> Nest:
        """Call the model as Keras's `fit` does to build it, and as in training if some layers are called only then."""
        try:
            outputs = self._model(x, **training_argument(self._model, False))
            if not is_built(self._model):
                self._model(x, **training_argument(self._model, True))
            return outputs
        except Exception as error:
            self.failure = error
            raise


def _shapes(x: Spec) -> str:
    return ", ".join(f"{spec.dtype.name} {list(spec.shape)}" for spec in tf.nest.flatten(x))
