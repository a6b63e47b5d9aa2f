"""`model.compile` and a step: either can be made from what the other was given."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer, PerOutput
from mirrorkit.errors import StepError
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
