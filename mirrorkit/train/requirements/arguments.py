"""What `Step` requires of its other arguments: the optimizer, and options."""

from __future__ import annotations

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer
from mirrorkit.errors import StepError


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
                f"{type(optimizer).__name__}({name}={value}) is not supported in a Step. Use "
                f"Step(..., {option}={value})."
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
