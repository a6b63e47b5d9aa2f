"""`model.compile` and a step: either can be made from what the other was given.

What `Step(model, optimizer, loss=...)` trains is a `CompiledModel`; what the user's own `compile` said stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, KerasModel, KerasOptimizer, Nest, PerOutput
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument
from mirrorkit.train.step.loss_scale import LossScale

PARTS = ("loss", "metrics", "weighted_metrics", "loss_weights")  # of `compile`, beside the optimizer


def require_compiled(model: KerasModel) -> None:
    """Refuse a model on which `compile` was not called, or that is to run eagerly."""
    if not getattr(model, "compiled", False):
        raise StepError(
            "The model is not compiled. Call model.compile(...) in the strategy's scope, or use mk.train.Step(model, "
            "optimizer, loss=...)."
        )
    if model.run_eagerly:
        raise StepError(
            f"{type(model).__name__} was compiled with run_eagerly=True, and a step is compiled: what a loss, a layer "
            "or a train_step does in Python, it would do once. Leave out run_eagerly; keep in a variable what changes, "
            "and print with tf.print."
        )


def compiled_parts(model: KerasModel) -> dict[str, Any]:
    """Return optimizer, loss, metrics and loss scale of a compiled model as keyword arguments of `Step`."""
    given = compiled_config(model).config
    parts = {"loss": None} | {name: given[name] for name in PARTS if given.get(name) is not None}
    optimizer, scale = without_scale(model.optimizer)
    return {"optimizer": optimizer, **parts} | ({} if scale is None else {"loss_scale": scale})


def without_scale(optimizer: KerasOptimizer) -> tuple[KerasOptimizer, LossScale | None]:
    """Take apart what `compile` makes of the optimizer of a mixed_float16 model."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer, None
    scale = LossScale(initial=optimizer.initial_scale, growth_steps=optimizer.dynamic_growth_steps)
    return optimizer.inner_optimizer, scale


def compiled_config(model: KerasModel) -> Any:
    """Return what each call of `compile` replaces."""
    private.check(compiled=model)
    return model._compile_config


def require_same_compile(model: KerasModel, config: object) -> None:
    """Refuse a model on which `compile` was called since it had this `config`; None stands for any."""
    if config is not None and compiled_config(model) is not config:
        raise StepError(
            "model.compile was called after Step.from_compiled, which keeps the earlier optimizer, loss and metrics. "
            "Make a new Step.from_compiled(model) and a new Loop."
        )


def compile_model(model: KerasModel, optimizer: KerasOptimizer, **measured: PerOutput) -> None:
    """Compile a model with what a step was given, unless it is compiled with this optimizer already.

    Keras callbacks look for `model.optimizer`, and a saved model should know how it was trained.
    """
    compiled = getattr(model, "optimizer", None)
    if getattr(compiled, "inner_optimizer", compiled) is optimizer and model.compiled:
        return
    # Not `model.compile`, which may be the user's own.
    keras.Model.compile(model, optimizer=optimizer, **measured, auto_scale_loss=False)


def stand_in(strategy: tf.distribute.Strategy, model: KerasModel) -> KerasOptimizer:
    """Return an optimizer without slots, whose count of updates stays 0, and tell callbacks that there is none."""
    if not hasattr(model, "optimizer"):
        model.optimizer = None  # TensorBoard asks for it
    with strategy.scope():
        return keras.optimizers.SGD(0.0, name="no_optimizer")


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
        """Those of the step, and what the model and its layers measure by themselves.

        A model in the model has a loss and metrics of its own `compile`, which are none of these.
        """
        found = {id(metric): metric for metric in super().metrics}
        names = {metric.name for metric in found.values()}
        for layer in layers_of(self.model):
            is_inner = layer is not self.model and isinstance(layer, keras.Model)
            own = [metric for metric in layer._metrics if not (is_inner and metric.name in names)]
            found |= {id(metric): metric for metric in own}
        return list(found.values())

    def compute_loss(self, *args: Any, **options: Any) -> tf.Tensor:
        """Return Keras's; 0 where there is nothing to minimize, and metrics alone are evaluated."""
        return super().compute_loss(*args, **options) if self.has_loss else tf.zeros([])

    def get_metrics_result(self) -> dict[str, Any]:
        """Return Keras's logs, without a loss where there is none."""
        logs: dict[str, Any] = super().get_metrics_result()
        return {name: value for name, value in logs.items() if self.has_loss or name != "loss"}
