"""Losses as sums over examples and the number that divides them, so that shards of any size add up exactly.

A mean over the local batch cannot be combined across replicas without knowing each one's size; a numerator and a
denominator can. Both travel in the step's one reduction.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Loss, Nest, PerOutput
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import Output, kind_of_target, own_value, per_output
from mirrorkit.variables import fixed_number

_READ_IN_LOSS = (
    "Multiply by it in the loss, which reads it in each step: lambda y, y_pred: "
    "variable * keras.losses.mean_squared_error(y, y_pred)."
)


class LossSum(NamedTuple):
    """The loss of one output over one shard; sums of both over all shards, divided, give that of the whole batch."""

    numerator: tf.Tensor
    denominator: tf.Tensor | None  # what a mask or weights leave to divide by; None for the number of examples


class Losses:
    """The losses of a model's outputs, resolved once the outputs are known: tensors or anything with `shape`.

    `loss` and `loss_weights` are what Keras's `compile` takes: for several outputs a list in their order, a dict by
    their names, or one loss for all of them. An output that has no weight counts with 1.
    """

    def __init__(self, loss: PerOutput, loss_weights: PerOutput, outputs: Sequence[Output]) -> None:
        names = [output.name for output in outputs]
        if not isinstance(loss, (list, tuple, dict)):  # one for all outputs, as in Keras
            loss = [loss] * len(names)
            if isinstance(loss_weights, (int, float)):
                loss_weights = [loss_weights] * len(names)
        self.names = names
        self._losses: list[Loss | None] = per_output(names, loss, "losses")
        self.require_targets([output.y for output in outputs])
        # each output's index and loss, in the order of `sums`
        self.members = [(i, _resolve(one, outputs[i])) for i, one in enumerate(self._losses) if one is not None]
        self.widths = [outputs[i].y_pred.shape[-1] if outputs[i].y_pred.shape else None for i, _ in self.members]
        weights = [
            1.0 if weight is None else fixed_number("loss_weights", weight, _READ_IN_LOSS)
            for weight in per_output(names, loss_weights, "loss weights")
        ]
        self.weights = [weights[index] for index, _ in self.members]  # of each entry of `sums` in the total

    def sums(self, outputs: Sequence[Output]) -> list[LossSum]:
        """Sum the losses of one shard: one entry for each output that has a loss, without its weight."""
        return [loss_sum(loss, outputs[index]) for index, loss in self.members]

    def require_targets(self, targets: Sequence[Nest]) -> None:
        """Refuse data that has no target (None) for an output with a loss."""
        for name, loss, target in zip(self.names, self._losses, targets, strict=True):
            if loss not in (None, own_value) and target is None:
                output = "the model's output" if name is None else f"the output {name!r}"
                raise StepError(
                    f"There is a loss but no target for {output}. Let the data yield (x, y), with a target for every "
                    "output that has a loss."
                )

    @property
    def log_names(self) -> list[str]:
        """The log name of each entry of `sums`: "loss" for a single one."""
        return self.own_names or ["loss"] * len(self.members)

    @property
    def own_names(self) -> list[str]:
        """Log names of the entries of `sums`, as in Keras; none for a single one."""
        return [f"{self.names[index]}_loss" for index, _ in self.members if len(self.members) > 1]


def _resolve(loss: Loss | str, output: Output) -> Loss:
    if loss in ("crossentropy", "ce"):
        loss = f"{kind_of_target(output)}_crossentropy"
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError as error:
            raise StepError(f"Keras knows no loss {loss!r}: {error}") from error
    if isinstance(loss, type):
        raise StepError(f"The loss is the class {loss.__name__} itself. Create an instance: {loss.__name__}().")
    if not callable(loss):
        raise StepError(f"A loss must be a Keras name, a function or a keras.losses.Loss; found {loss!r}.")
    if isinstance(loss, keras.losses.Loss) and not type(loss).__call__.__module__.startswith("keras."):
        raise StepError(
            f"{type(loss).__name__} overrides __call__, which Keras's fit calls and a step does not: it sums the "
            "values of all shards itself. Override call(y_true, y_pred), which returns a value for each example."
        )
    reduction = getattr(loss, "reduction", "mean")
    if reduction in ("sum", "none", None):
        raise StepError(
            f"{type(loss).__name__}(reduction={reduction!r}) minimizes a sum over the batch in Keras's fit, so the "
            "size of an update depends on the size of the batch. Use reduction='sum_over_batch_size', the default, and "
            "scale the learning rate (mk.batching.scale_learning_rate)."
        )
    return loss


def loss_sum(loss: Loss, output: Output) -> LossSum:
    """Sum a loss over one shard, with weights and masks as Keras counts them."""
    values, mask = _values(loss, output)
    weight = None if output.weight is None else tf.cast(output.weight, values.dtype)
    if not values.shape.rank:  # one number for the batch is that of each row: right where it is their mean
        known = [one for one in (mask, weight) if one is not None]
        values = tf.fill(tf.shape(known[0]) if known else tf.shape(output.y_pred)[:1], values)
    weight = None if weight is None else _fit(weight, values)
    if mask is not None:
        mask = _fit(tf.cast(mask, values.dtype), values)
        weight = mask if weight is None else weight * mask
    weighted = values if weight is None else values * weight
    if getattr(loss, "reduction", None) == "mean_with_sample_weight" and weight is not None:
        return LossSum(tf.reduce_sum(weighted), tf.reduce_sum(tf.broadcast_to(weight, tf.shape(values))))
    if mask is not None:
        return LossSum(tf.reduce_sum(weighted), tf.reduce_sum(tf.broadcast_to(mask, tf.shape(values))))
    per_example = weighted if len(values.shape) == 1 else tf.reduce_mean(weighted, list(range(1, len(values.shape))))
    return LossSum(tf.reduce_sum(per_example), None)


def _values(loss: Loss, output: Output) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return the loss of each example or position, and which of them count (None for all)."""
    values = call_loss(loss, output.y, output.y_pred)
    # Layers mask the outputs; losses such as SparseCategoricalCrossentropy(ignore_class=...) mask their own values.
    masks = [mask_of(output.y_pred), mask_of(values)]
    known = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
    mask = known[0] if len(known) == 1 else tf.logical_and(*known) if known else None
    return tf.cast(values, tf.float32), mask


def call_loss(loss: Loss, y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Return a loss's values as Keras computes them, before any mean of its own."""
    if isinstance(loss, keras.losses.Loss):  # as Loss.__call__ does before its own mean
        if type(loss).__call__ is keras.losses.Loss.__call__:
            y = tf.cast(y, loss.dtype)
        return loss.call(y, tf.cast(y_pred, loss.dtype))
    return loss(*_as_keras_gives(y, y_pred))


def loss_name(loss: Loss) -> str:
    """Return the name of a function, or of a loss's class."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def setting_of(loss: PerOutput, name: str) -> Any:
    """Return what a loss was created with, such as `from_logits`; None where it has no such setting."""
    sparse = keras.losses.SparseCategoricalCrossentropy
    settings = sparse.get_config(loss) if isinstance(loss, sparse) else {}  # from Keras 3.16 on they are no attributes
    return getattr(loss, name, settings.get(name))


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the mask that Keras has put on a tensor, or None."""
    mask: tf.Tensor | None = private.get("masking.get_keras_mask")(tensor)
    return mask


def _as_keras_gives(y: tf.Tensor | None, y_pred: tf.Tensor) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Cast both to Keras's float type and bring them to one rank, as Keras does before it calls a loss function."""
    if y is None:
        return None, tf.cast(y_pred, keras.config.floatx())
    y, y_pred = tf.cast(y, keras.config.floatx()), tf.cast(y_pred, keras.config.floatx())
    if len(y.shape) + 1 == len(y_pred.shape) and y_pred.shape[-1] == 1:
        return y[..., tf.newaxis], y_pred
    if len(y.shape) == len(y_pred.shape) + 1 and y.shape[-1] == 1:
        return (y, y_pred[..., tf.newaxis]) if len(y_pred.shape) == 1 else (tf.squeeze(y, -1), y_pred)
    return y, y_pred


def _fit(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    if len(weight.shape) == len(values.shape) + 1 and weight.shape[-1] == 1:
        return tf.squeeze(weight, -1)
    while len(weight.shape) < len(values.shape):
        weight = weight[..., tf.newaxis]
    return weight


def warn_on_logits_mismatch(model: KerasModel, loss: PerOutput) -> None:
    """Warn when the last layer gives logits and the loss expects probabilities, or vice versa.

    Both train without an error and to a poor result.
    """
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if "crossentropy" not in name.replace("_", "").lower() or not getattr(model, "layers", None):
        return
    layer = model.layers[-1]
    activation = getattr(getattr(layer, "activation", None), "__name__", None)
    from_logits = bool(setting_of(loss, "from_logits"))
    is_plain = isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D)) and activation in (None, "linear")
    if is_plain and not from_logits:
        found, cure = "the model's last layer has no activation, so it returns logits", "from_logits=True"
    elif activation in ("softmax", "sigmoid") and from_logits:
        found, cure = f"the model's last layer applies {activation}, so it returns probabilities", "from_logits=False"
    else:
        return
    cls = "".join(part.capitalize() for part in name.split("_")) if isinstance(loss, str) else name
    warnings.warn(
        f"The loss {name!r} does not fit the model: {found}. Use keras.losses.{cls}({cure}).", UserWarning, stacklevel=3
    )
