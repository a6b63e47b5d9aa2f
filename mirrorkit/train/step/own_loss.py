"""What `Step.from_loss` is given: models, and a function of a batch that returns a loss for each example.

To the rest of a step it is a model whose input is the whole batch and whose outputs are the values of each example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import Batch, KerasMetric, KerasVariable, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.building import is_built
from mirrorkit.train.keras_model.calling import placeholders, predict_with, read, running, value_scope
from mirrorkit.train.keras_model.layer_state import layers_of, takes
from mirrorkit.train.keras_model.models import Models, flatten
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.requirements.model import check_predicts_as_keras

LossFunction = Callable[..., Any]  # (batch) or (batch, training) -> values [rows], or a dict of them


class LossModel(Models):
    """The models, and as their call the user's function; its outputs are values [rows] by name.

    A step of it is Keras's own `train_step`, whose loss is the mean of the values named "loss".

    Attributes:
        kept: returns the ids of the variables of models that another step trains.
    """

    def __init__(self, models: Nest, loss_fn: LossFunction, frozen: Nest) -> None:
        wrong = [
            part
            for part in flatten(models)
            if not isinstance(part, (keras.layers.Layer, keras.random.SeedGenerator)) or isinstance(part, type)
        ]
        if wrong or not any(isinstance(part, keras.layers.Layer) for part in flatten(models)):
            raise StepError(
                "Step.from_loss takes as its models a Keras model or layer, or a list or dict of models, layers and "
                f"SeedGenerators; found {wrong[0] if wrong else models!r}. Let a layer hold single weights "
                "(add_weight)."
            )
        super().__init__(models, "from_loss")
        self.kept = _kept(self, list(flatten(frozen)))
        takes_training = takes(inspect.signature(loss_fn), "training")

        def values(batch: Batch, training: bool) -> Nest:
            return loss_fn(batch, training=training) if takes_training else loss_fn(batch)

        means: dict[str, KerasMetric] = {}

        def means_by_name() -> dict[str, KerasMetric]:
            return means

        # Both functions, so that Keras tracks no layer that `loss_fn` may be, and saves no metric with the models.
        self._values, self._means = values, means_by_name

    @property
    def trainable_variables(self) -> list[KerasVariable]:
        """What this step trains: not what another one does."""
        kept = self.kept()
        return [variable for variable in super().trainable_variables if id(variable) not in kept]

    trainable_weights = trainable_variables  # whose regularizers Keras adds to the losses

    @property
    def non_trainable_variables(self) -> list[KerasVariable]:
        """All others."""
        trained = set(map(id, self.trainable_variables))
        return [variable for variable in self.variables if id(variable) not in trained]

    @property
    def trained_parts(self) -> list[str]:
        """The names of the models and layers that have a weight to be trained."""
        trained = set(map(id, self.trainable_variables))
        # A SeedGenerator has none.
        return [part.name for part in self.parts if trained & set(map(id, getattr(part, "trainable_variables", [])))]

    def call(self, batch: Batch, training: bool = False) -> dict[str, Nest]:
        """Return what the function returns, by name; layers in it that are not told take `training` from here."""
        values = self._values(batch, training)
        named = dict(values) if isinstance(values, Mapping) else {"loss": values}
        is_number = {name: tf.is_tensor(value) and not value.dtype.is_floating for name, value in named.items()}
        return {name: tf.cast(value, tf.float32) if is_number[name] else value for name, value in named.items()}

    def measure(self, names: Sequence[str]) -> None:
        """Create a metric for each value that is logged; in the strategy's scope."""
        for name in names:
            if name != "loss" and name not in self._means():
                self._means()[name] = keras.metrics.Mean(name=name)

    @property
    def metrics(self) -> list[KerasMetric]:
        """Keras's, among them the loss, and the means of what else the function returns."""
        return [*super().metrics, *self._means().values()]

    def train_step(self, data: Batch) -> Mapping[str, Any]:
        """Let Keras train with the whole batch as what the model is called on."""
        return super().train_step((data,))  # type: ignore[no-any-return]

    def test_step(self, data: Batch) -> Mapping[str, Any]:
        """See `train_step`."""
        return super().test_step((data,))  # type: ignore[no-any-return]

    def compute_loss(
        self, x: Nest, y: Nest, y_pred: Mapping[str, tf.Tensor], sample_weight: Nest, training: bool = True
    ) -> tf.Tensor:
        """Return the mean over the rows, and what layers add."""
        added = [tf.cast(tf.reduce_sum(one), tf.float32) for one in self.losses]
        return tf.add_n([tf.reduce_mean(tf.cast(y_pred["loss"], tf.float32)), *added])

    def compute_metrics(
        self, x: Nest, y: Nest, y_pred: Mapping[str, tf.Tensor], sample_weight: Nest = None
    ) -> Mapping[str, Any]:
        """Count the other values, one for each row."""
        if y_pred.keys() - {"loss"} != self._means().keys():
            raise StepError(
                f"loss_fn returned {sorted(y_pred)} here, and {sorted({*self._means(), 'loss'})} with training=False. "
                "Return the same names in both."
            )
        for name, metric in self._means().items():
            metric.update_state(y_pred[name])
        return self.get_metrics_result()  # type: ignore[no-any-return]


def _kept(models: Models, frozen: list[Any]) -> Callable[[], set[int]]:
    """Return what tells the ids of the variables that are not trained: those of a model come when it is built."""
    parts, variables = set(map(id, layers_of(models))), set(map(id, models.variables))
    for layer in frozen:
        if id(layer) not in parts and not (is_built(layer) and set(map(id, layer.variables)) <= variables):
            raise StepError("A model that is frozen must be one of the models that Step.from_loss is given.")
    return lambda: {id(variable) for layer in frozen for variable in layer.variables}


_UNUSUAL = 1009  # rows; a prime that no other dimension is likely to be, and nothing is computed


def names_of_values(model: LossModel, batch: Spec) -> list[str]:
    """Return the names of what the user's loss function gives for a batch; refuse what is not one value per example."""
    try:
        return _names(model, batch, _UNUSUAL)
    except StepError:
        raise
    except Exception:  # perhaps a model that takes batches of one size alone; if not, the error now comes again
        return _names(model, batch, tf.nest.flatten(batch)[0].shape[0])


def _names(model: LossModel, batch: Spec, rows: int | None) -> list[str]:
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec([rows, *tensor.shape[1:]], tensor.dtype), batch)
    with private.get("__internal__.FuncGraph")("loss_fn").as_default():
        weights, state = map(placeholders, (model.trainable_variables, model.non_trainable_variables))
        with running(model, value_scope(model, weights, state)):
            found = read(model(placeholders(specs), training=False))
    if "loss" not in found or not all(isinstance(name, str) for name in found):
        raise StepError(
            f'loss_fn returned a dict with the names {list(found)}. Return {{"loss": values, ...}}: the loss of each '
            "example, and other values to log by their names."
        )
    for name, value in found.items():
        shape = getattr(value, "shape", None)
        if shape is not None and shape == [rows]:
            continue
        raise StepError(
            f"loss_fn returned {type(value).__name__ if shape is None else f'shape {shape}'} for {name!r} of "
            f"{rows} rows, which were tried; a step needs one value per example, shape [rows], and takes the mean over "
            "the global batch itself. Return the values before any mean over the batch, and of several values per "
            "example their sum or mean, such as tf.reduce_mean(values, axis=-1). An example that does not count has "
            "the value 0: write tf.where in place of tf.boolean_mask. Where TensorFlow does not know how many values "
            "there are, write tf.reshape(values, tf.shape(inputs)[:1])."
        )
    return sorted(found)


def prediction(models: Models, predict: Callable[[Batch], Nest] | None) -> Callable[[Batch], Nest]:
    """Return what predicts from a batch: the user's function, or the first model, which is called on `x`."""
    if predict is not None:
        return running(None)(predict)
    first = models.parts[0]

    def of_first(batch: Batch) -> Nest:
        check_predicts_as_keras(first)
        return predict_with(first, unpack_batch(batch).x)

    return of_first
