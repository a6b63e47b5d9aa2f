"""Build what a `Step` was given, for a strategy: the model where it is not built, then the `LoopStep` that computes."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasModel, KerasOptimizer, Spec
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name, has_copies
from mirrorkit.train.keras_model import building
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_scope import NotAFunction
from mirrorkit.train.replica_code.step_function import build_as_it_trains, overrides
from mirrorkit.train.requirements.arguments import check_optimizer
from mirrorkit.train.requirements.data import check_tensors
from mirrorkit.train.requirements.same_rows import require_same_rows
from mirrorkit.train.step.keras_compile import compiled_config, require_compiled, without_scale
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
        return _build_own(strategy, model, options, element_spec)
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


def _build_own(
    strategy: tf.distribute.Strategy, model: KerasModel, options: Options, element_spec: Spec
) -> Supervised | KerasStep:
    """Return the step that runs the model's own `train_step`: as a function of values, or as it is on each replica."""
    name = type(model).__name__
    if element_spec is None:
        raise StepError(
            f"How the train_step of {name} trains is known when it has seen data, so it trains in a Loop only. Call "
            "loop.warm_up(data) before loop.restore; `fit` with Checkpoints restores by itself. For a training loop of "
            "your own use Step.from_loss(model, optimizer, loss_fn)."
        )
    build_as_it_trains(model, element_spec, strategy)
    own = OwnStep(model, strategy.num_replicas_in_sync)
    try:
        optimizer = own.found("train", element_spec).optimizer
        if overrides(model, "test_step"):
            own.found("test", element_spec)
    except NotAFunction as why:
        _log.info("The train_step of %s runs on each replica with variables of its own: %s.", name, why)
        if not has_copies(strategy):
            raise StepError(
                f"{class_name(strategy)} has one copy of a variable for all replicas, so the train_step of {name} "
                f"would have to make one update, at its end: {why}. Use mirrored or multi_worker, or "
                "Step.from_loss(model, optimizer, loss_fn)."
            ) from None
        if options.asked:
            raise StepError(
                f"Step.from_compiled was given {', '.join(options.asked)} for {name}, whose train_step would have to "
                f"make one update, at its end: {why}. Write the option into the train_step, or give clipping to its "
                "optimizers."
            ) from None
        return KerasStep(strategy, model, options.unchecked, element_spec if why.of_data else None)
    _log.info("The train_step of %s runs as a function of values, with one update at its end.", name)
    model.built = True  # as Keras's `fit` leaves it
    optimizer, scale = without_scale(optimizer)
    options = options if options.loss_scale else dataclasses.replace(options, loss_scale=scale)
    check_optimizer(optimizer)
    return Supervised(strategy, model, optimizer, options, own=own)


def options_of_keras(model: KerasModel, options: dict[str, Any]) -> Options:
    """Return the options of a step that runs the model's own `train_step`."""
    require_compiled(model)
    private.check(model=model)
    if model.run_eagerly:
        raise StepError(
            f"{type(model).__name__} was compiled with run_eagerly=True, and its train_step is compiled here: what it "
            "does in Python, it would do once. Leave out run_eagerly; keep what changes in variables."
        )
    given = {"jit_compile": False} | options
    asked = sorted(set(options) - {"unchecked"})
    return Options.of({}, {}, **given, runs_keras=True, asked=asked, compiled=compiled_config(model))


def require_supervised(step: Supervised | KerasStep) -> Supervised:
    """Refuse a model with a `train_step` of its own where a loss and its gradient are asked for."""
    if isinstance(step, Supervised):
        return step
    raise StepError(
        f"{type(step.model).__name__} overrides what Keras's training calls, and such a model trains in a "
        "mk.train.Loop only. For a training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
    )
