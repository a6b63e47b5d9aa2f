"""Build what a `Step` was given, for a strategy: the model where it is not built, then the `LoopStep` that computes."""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasModel, KerasOptimizer, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model import building
from mirrorkit.train.replica_code.step_function import build_as_it_trains
from mirrorkit.train.requirements.data import check_tensors
from mirrorkit.train.requirements.same_rows import require_same_rows
from mirrorkit.train.step.keras_compile import require_compiled
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import LossModel
from mirrorkit.train.step.supervised import Supervised

_log = logging.getLogger("mirrorkit")


def build_step(
    strategy: tf.distribute.Strategy,
    model: KerasModel,
    optimizer: KerasOptimizer | None,
    options: Options,
    shown: KerasModel,
    element_spec: Spec = None,
) -> Supervised | KerasStep:
    """Return the step that computes; `shown` is the model that callbacks see, `element_spec` that of the data."""
    if options.runs_keras:
        if element_spec is not None:
            build_as_it_trains(model, element_spec, strategy)
        return KerasStep(strategy, model, options.unchecked)
    if element_spec is not None and not building.is_built(model):
        batch = options.unpack(element_spec)
        check_tensors(tuple(batch))
        require_same_rows(batch.x if batch.y is None else batch.present)
        building.build(model, batch, strategy)
    step = Supervised(strategy, model, optimizer, options, shown=shown)
    if isinstance(model, LossModel):  # now, when all are built
        _log.info("Step.from_loss trains %s.", ", ".join(model.trained_parts))
    shown.built = True  # Keras saves no weights of a model whose parts alone were called
    return step


def options_of_keras(model: KerasModel, options: dict[str, Any]) -> Options:
    """Return the options of a step that runs the model's own `train_step`; refuse those that it cannot follow."""
    if wrong := sorted(set(options) - {"unchecked"}):
        raise StepError(
            f"Step.from_compiled was given {', '.join(wrong)} for {type(model).__name__}, which overrides what Keras's "
            "training calls: what it computes is its own. Write that into its train_step, or give clipping to its "
            "optimizers."
        )
    require_compiled(model)
    private.check(model=model)
    return Options.of_keras(**options)


def require_supervised(step: Supervised | KerasStep) -> Supervised:
    """Refuse a model with a `train_step` of its own where a loss and its gradient are asked for."""
    if isinstance(step, Supervised):
        return step
    raise StepError(
        f"{type(step.model).__name__} overrides what Keras's training calls, and such a model trains in a "
        "mk.train.Loop only. For a training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
    )
