"""What a step requires of a model, its variables and its optimizer to mean the same on every replica."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasLayer, KerasModel, KerasOptimizer, KerasVariable, Variable
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name
from mirrorkit.train.keras_model.building import IN_SCOPE
from mirrorkit.train.keras_model.layer_state import layers_of, overrides
from mirrorkit.train.keras_model.models import Models
from mirrorkit.variables import native, path


def check_model(model: KerasModel, *, scaled: bool, trains: bool = True) -> None:
    """Refuse anything but a built Keras model; where it `trains`, one with nothing to train, and unscaled float16."""
    if not isinstance(model, keras.Model):
        raise StepError(
            f"The model must be a keras.Model of Keras 3, found {model!r}. For a name of the zoo, write "
            "mk.models.create(name) in the strategy's scope."
        )
    for part in model.parts if isinstance(model, Models) else [model]:
        if isinstance(part, keras.layers.Layer) and not _has_weights(part):
            raise StepError(
                f"{part.name!r} is not built: its layers have no variables yet. A Loop builds it from the first data "
                "that fit, evaluate, predict or warm_up is given. Before that, or without a Loop, call it once on a "
                "batch in the strategy's scope: `with strategy.scope(): model(x)`."
            )
    check_layers(model)
    for layer in layers_of(model) if trains else []:
        if getattr(layer, "variable_dtype", None) == "float16":
            raise StepError(
                f"The layer {layer.name!r} keeps its weights in float16, which small updates leave as they are. Use "
                'keras.config.set_dtype_policy("mixed_float16").'
            )
        if getattr(layer, "compute_dtype", None) == "float16" and not scaled:
            raise StepError(
                f"The layer {layer.name!r} computes in float16, whose small gradients vanish without a loss scale. Use "
                'Step(..., loss_scale="dynamic"), or keras.config.set_dtype_policy("mixed_bfloat16"), which needs none.'
            )
    if trains and not model.trainable_variables:
        raise StepError(
            f"The model {model.name!r} has no trainable variables. Set trainable = True, or give it a layer with "
            "weights."
        )


def check_layers(model: KerasModel) -> None:
    """Refuse recurrent layers with `stateful=True`, and float8 training."""
    for layer in layers_of(model):
        if getattr(layer, "stateful", False):
            raise StepError(
                f"The layer {layer.name!r} has stateful=True: it keeps a state for each row of a batch for the next "
                "batch, and replicas do not keep the rows apart. Create it without stateful=True."
            )
    for variable in model.trainable_variables:  # float8's scales and maxima, say, cannot be added up
        if getattr(variable, "overwrite_with_gradient", False):
            raise StepError(
                f"The variable {variable.path!r} takes its gradient for its new value (overwrite_with_gradient, as in "
                "float8 training); sums over replicas would not be that value. Use "
                'keras.config.set_dtype_policy("mixed_bfloat16").'
            )


def _has_weights(layer: KerasLayer) -> bool:
    """Whether a layer has the variables that it will have; a model whose parts alone are called need not be built."""
    leaves = [inner for inner in layers_of(layer)[1:] if len(layers_of(inner)) == 1]
    if leaves and not (layer.built and layer.variables):
        return all(leaf.built for leaf in leaves)
    return bool(layer.built)


_FROM_LOSS = "mk.train.Step.from_loss(model, optimizer, loss_fn), with loss_fn(batch) -> values [rows]"


_AS_IT_IS = "model.compile(...) and mk.train.Step.from_compiled(model), which runs it as it is"


_OVERRIDDEN = {  # what Keras's fit and evaluate call, and what to write in place of an override
    "train_step": f"{_AS_IT_IS}, or {_FROM_LOSS}",
    "test_step": f"{_AS_IT_IS}, or {_FROM_LOSS} or a dict of them, for validation too",
    "compute_loss": f"{_AS_IT_IS}, or {_FROM_LOSS}",
    "compute_metrics": f"{_AS_IT_IS}, or keras.metrics.Metric objects for Step(..., metrics=[...])",
    "get_metrics_result": f"{_AS_IT_IS}, or keras.metrics.Metric objects for Step(..., metrics=[...])",
    "make_train_function": f"train_step and {_AS_IT_IS}, or {_FROM_LOSS}",
    "make_test_function": "an evaluation of your own of loop.predict(...)",
}


_RUN = ("train_step", "test_step", "compute_loss", "compute_metrics", "get_metrics_result")  # what a step runs


def overrides_training(model: KerasModel) -> bool:
    """Whether a model says itself how it trains or is evaluated, so that its own code is to be run."""
    check_overrides(model, [name for name in _OVERRIDDEN if name not in _RUN])
    return isinstance(model, keras.Model) and any(overrides(model, name) for name in _RUN)


def check_overrides(model: KerasModel, names: Sequence[str] = tuple(_OVERRIDDEN)) -> None:
    """Refuse a model that overrides one of these, which Keras's `fit` and `evaluate` call and a step does not."""
    if isinstance(model, keras.Model):
        private.check(model=model)
    for name in names:
        _require_keras_own(model, name, _OVERRIDDEN[name])


def check_predicts_as_keras(model: KerasModel) -> None:
    """Refuse to predict with a model that overrides what Keras's `predict` calls."""
    for name in ("predict_step", "make_predict_function"):
        _require_keras_own(model, name, "that work as the model's last layers, or call the model yourself")


def _require_keras_own(model: KerasModel, name: str, cure: str) -> None:
    if isinstance(model, keras.Model) and overrides(model, name):
        raise StepError(
            f"{type(model).__name__} overrides {name}, which Keras's own training calls and a mirrorkit step does not: "
            f"it would be ignored. Write {cure}."
        )


def trainable_of(model: KerasModel) -> list[tuple[KerasLayer | Variable, bool]]:
    """Return every layer and variable of a model with its `trainable`, for `check_same_trainable`."""
    return [(part, part.trainable) for part in [*layers_of(model), *model.variables]]


def check_same_trainable(before: Sequence[tuple[KerasLayer | Variable, bool]]) -> None:
    """Refuse a model in which `trainable` was changed since its step was built or traced: that would be ignored.

    A layer without weights to train counts too: BatchNormalization keeps its statistics where it is frozen.
    """
    for part, was in before:
        if part.trainable != was:
            raise StepError(
                f"`trainable` of {path(part)!r} was changed since this step was built, and would be ignored. Make a "
                "new optimizer and a new Step after changing it; with mk.fit, call compile again."
            )


def check_still_trainable(
    model: KerasModel, weights: Sequence[KerasVariable], before: Sequence[tuple[KerasLayer | Variable, bool]]
) -> None:
    """Refuse a model whose trainable variables are no longer the `weights` that a step was built for."""
    check_same_trainable(before)
    if [id(v) for v in weights] != [id(v) for v in model.trainable_variables]:
        raise StepError(
            "The model's trainable variables are not those that this step was built for. Make a new optimizer and a "
            "new Step after changing layers."
        )
    if {id(v) for v in weights} != {id(v) for v in model.trainable_weights}:
        raise StepError(
            f"The trainable_weights of {type(model).__name__} are not its trainable_variables, which a step trains. "
            "Set `trainable = False` on the layers that are not to be trained, in place of overriding the property."
        )


def variables_of(step: object, why: str) -> list[Variable]:
    """Return the variables that any step says it changes, each once; `why` tells what cannot be done without them."""
    variables = list({id(variable): variable for variable in getattr(step, "variables", [])}.values())
    if not variables:
        raise StepError(
            f"{type(step).__name__} does not say what it changes, so {why}. Give it a property `variables`: a list of "
            "all variables that its update writes."
        )
    return variables


def check_variables(strategy: tf.distribute.Strategy, variables: Sequence[Variable]) -> None:
    """Refuse variables that were created outside of the strategy's scope: its replicas would share one copy."""
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(native(variable)):
            raise StepError(
                f"The variable {path(variable)!r} was not created in the scope of this {class_name(strategy)}. "
                f"{IN_SCOPE}"
            )


def require_tpu_precision(model: KerasModel) -> None:
    """Refuse float16, for which a TPU has no arithmetic."""
    for layer in layers_of(model):
        if getattr(layer, "compute_dtype", None) == "float16":
            raise StepError(
                f"The layer {layer.name!r} computes in float16, for which a TPU has no arithmetic. Use "
                'keras.config.set_dtype_policy("mixed_bfloat16"), which needs no loss scale.'
            )


def check_optimizer(optimizer: KerasOptimizer) -> None:
    """Refuse what is not a Keras optimizer, and those of its switches that cannot work in a replicated step."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise StepError(
            f"The optimizer must be a keras.optimizers.Optimizer, found {optimizer!r}. "
            "For a name, write keras.optimizers.get(name) in the strategy's scope."
        )
    if type(optimizer).__name__ == "MultiOptimizer":
        raise StepError("MultiOptimizer is not supported in a Step. Use one optimizer for all variables.")
    for name in ("apply_gradients", "scale_loss"):
        if not next(kind for kind in type(optimizer).__mro__ if name in vars(kind)).__module__.startswith("keras."):
            raise StepError(
                f"{type(optimizer).__name__} overrides {name}, which Keras's own training calls and a mirrorkit step "
                "does not: it would be ignored. Change the gradients in update_step, or in a step of your own."
            )
    replaced = [name for name in vars(optimizer) if callable(getattr(type(optimizer), name, None))]
    if replaced:
        raise StepError(
            f"{', '.join(replaced)} was replaced on this {type(optimizer).__name__} itself, which a step would ignore. "
            "Define it in a subclass: what changes gradients or rates belongs in update_step."
        )
    check_switches(optimizer)
    private.check(optimizer=optimizer)


def check_switches(optimizer: KerasOptimizer) -> None:
    """Refuse those of an optimizer's switches that cannot work where each replica makes the same update."""
    _require_no_inner(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise StepError(
            "LossScaleOptimizer decides on one replica whether a step is skipped, so replicas drift apart. Pass its "
            'inner_optimizer, and loss_scale="dynamic" to the Step.'
        )
    for name, option in {"gradient_accumulation_steps": "accumulate", "loss_scale_factor": "loss_scale"}.items():
        value = getattr(optimizer, name, None)
        if value is not None:
            raise StepError(
                f"{type(optimizer).__name__}({name}={value}) is not supported in a Step. Leave it out, and give Step, "
                f"or mk.fit, {option}={value}."
            )


def _require_no_inner(optimizer: KerasOptimizer) -> None:
    """Refuse an optimizer that hands its work to another, except for Keras's own, which are known."""
    if type(optimizer).__module__.startswith("keras."):
        return
    for name, value in sorted(vars(optimizer).items(), key=lambda item: len(item[0])):  # TensorFlow's own come last
        for inner in keras.tree.flatten(value):
            if isinstance(inner, keras.optimizers.Optimizer):
                raise StepError(
                    f"{type(optimizer).__name__} holds another optimizer, {type(inner).__name__}, in its attribute "
                    f"{name!r}. A step computes an update from the optimizer's own variables, and would not see those "
                    "of the inner one. Derive the class from that of the inner optimizer and override update_step, or "
                    "give the step the inner optimizer. Averages of the weights, clipping, loss scale and accumulation "
                    "are options of Step: ema, clip_norm, loss_scale, accumulate."
                )
