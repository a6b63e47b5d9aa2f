"""A model, compiled with what `Step(model, optimizer, loss=...)` was given; what the user's `compile` said stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, KerasModel, KerasOptimizer, Nest, PerOutput
from mirrorkit.train.keras_model.layer_state import training_argument


def _of_model(name: str) -> property:
    return property(lambda model: list(getattr(model.model, name)), doc="The model's.")


class CompiledModel(keras.Model):  # type: ignore[name-defined, misc]
    """The model with a loss, metrics and an optimizer of its own, which Keras's own `train_step` then takes.

    Args:
        model: what is called, and whose variables these are.
        optimizer: that of the step.
        measured: the arguments of `compile` for losses and metrics.
        trains: whether there has to be a loss.
    """

    def __init__(
        self, model: KerasModel, optimizer: KerasOptimizer, measured: Mapping[str, PerOutput], *, trains: bool
    ) -> None:
        # It computes nothing itself, so no policy's 16 bits are to change what it is given.
        super().__init__(name=model.name, dtype="float32", autocast=False)
        self.model = model
        self.has_loss = trains or measured["loss"] is not None
        if getattr(model, "output_names", None):
            self.output_names = model.output_names
        self.compile(optimizer, **measured, jit_compile=False, auto_scale_loss=False)
        self.built = True

    def call(self, x: Nest, training: bool | None = None) -> Nest:
        """Call the model."""
        return self.model(x, **training_argument(self.model, bool(training)))

    __call__ = call  # as nothing but the model itself
    variables = _of_model("variables")
    trainable_variables = _of_model("trainable_variables")
    non_trainable_variables = _of_model("non_trainable_variables")
    trainable_weights = _of_model("trainable_weights")
    losses = _of_model("losses")  # what layers add

    @property
    def metrics(self) -> list[KerasMetric]:
        """Those of the step, and what the model and its layers measure by themselves."""
        own = super().metrics
        known = set(map(id, own))
        return [*own, *(one for one in keras.layers.Layer.metrics.fget(self.model) if id(one) not in known)]

    def compute_loss(self, *args: Any, **options: Any) -> tf.Tensor:
        """Return Keras's; 0 where there is nothing to minimize, and metrics alone are evaluated."""
        return super().compute_loss(*args, **options) if self.has_loss else tf.zeros([])

    def get_metrics_result(self) -> dict[str, Any]:
        """Return Keras's logs, without a loss where there is none."""
        logs: dict[str, Any] = super().get_metrics_result()
        return {name: value for name, value in logs.items() if self.has_loss or name != "loss"}
