"""Build what a `Step` was given, for a strategy: the model where it is not built, then the `LoopStep` that computes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasModel, KerasOptimizer, Spec
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name, has_copies
from mirrorkit.train.keras_model import building
from mirrorkit.train.keras_model.floatx import Cast
from mirrorkit.train.replica_code.own_step import Found, OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction
from mirrorkit.train.replica_code.step_function import build_as_it_trains, overrides
from mirrorkit.train.requirements.arguments import check_optimizer
from mirrorkit.train.requirements.data import check_tensors
from mirrorkit.train.requirements.model import check_model
from mirrorkit.train.requirements.same_rows import require_same_rows
from mirrorkit.train.step.compiled_model import CompiledModel
from mirrorkit.train.step.keras_compile import compiled_config, require_compiled, without_scale
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.measured import Measured
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import LossModel
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.step.whole_batch import refused

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
    if element_spec is None and options.runs_keras:
        raise StepError(
            f"How the train_step of {type(model).__name__} trains is known when it has seen data, so it trains in a "
            "Loop only. Call loop.warm_up(data) before loop.restore; `fit` with Checkpoints restores by itself. For a "
            "training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
        )
    if element_spec is not None:
        _build_model(strategy, model, options, element_spec)
    if not options.runs_keras:
        check_model(model, scaled=options.loss_scale is not None, trains=options.trains)
    trained = _trained(strategy, model, optimizer, options)
    measured = Measured(trained, model, strategy, options)
    shards = strategy.num_replicas_in_sync * options.accumulate
    own = OwnStep(
        trained,
        strategy.num_replicas_in_sync,
        None if options.whole_batch else refused(shards),
        measured,
        by_user=options.runs_keras,
        separates=options.accumulate > 1,
    )
    only_for: Spec = None if element_spec is not None or not options.as_compiled else ()  # not yet decided
    if element_spec is not None and options.as_compiled:
        try:
            found = _found(own, options, element_spec)
        except NotAFunction as why:
            if options.runs_keras or not why.of_data:
                return _with_variables(strategy, model, options, element_spec, why)
            only_for = element_spec
        except StepError:  # of data to predict for, perhaps, that has no targets; else it comes again
            if options.runs_keras:
                raise
            only_for = element_spec
        else:
            optimizer = found.optimizer if options.runs_keras else optimizer
    if options.runs_keras:
        model.built = True  # as Keras's `fit` leaves it
        name = type(model).__name__
        _log.info("The train_step of %s runs as a function of values, with one update at its end.", name)
        optimizer, scale = without_scale(optimizer)
        options = options if options.loss_scale else dataclasses.replace(options, loss_scale=scale)
        check_optimizer(optimizer)
    step = Supervised(strategy, model, optimizer, options, own=own, measured=measured, shown=shown)
    step.only_for = None if options.asked else only_for
    if isinstance(model, LossModel):  # now, when all are built
        _log.info("Step.from_loss trains %s.", ", ".join(model.trained_parts))
    shown.built = True  # Keras saves no weights of a model whose parts alone were called
    return step


def _build_model(strategy: tf.distribute.Strategy, model: KerasModel, options: Options, element_spec: Spec) -> None:
    if options.runs_keras:
        build_as_it_trains(model, element_spec, strategy)
    elif not building.is_built(model):
        batch = options.unpack(element_spec)
        check_tensors(tuple(batch))
        require_same_rows(batch.x if batch.y is None else batch.present)
        building.build(model, batch, strategy)


def _trained(
    strategy: tf.distribute.Strategy, model: KerasModel, optimizer: KerasOptimizer | None, options: Options
) -> KerasModel:
    """Return the model whose `train_step` is run: compiled with what the step was given."""
    if options.as_compiled:
        return model
    with strategy.scope():
        if isinstance(model, LossModel):
            model.compile(optimizer, jit_compile=False, auto_scale_loss=False)
            return model
        try:
            return CompiledModel(model, optimizer, {**options.losses, **options.metrics}, trains=options.trains)
        except (ValueError, TypeError) as error:
            raise StepError(f"Keras does not take these losses and metrics: {error}") from error


def _found(own: OwnStep, options: Options, element_spec: Spec) -> Found:
    """Trace the step for data like this."""
    parts = options.unpack(element_spec)
    data = options.data((parts if options.runs_keras else Cast(own.model)(parts)).present)
    found = own.found("train", data)
    if overrides(own.model, "test_step"):
        own.found("test", data)
    return found


def _with_variables(
    strategy: tf.distribute.Strategy, model: KerasModel, options: Options, element_spec: Spec, why: NotAFunction
) -> KerasStep:
    """Return the step that runs the model's `train_step` on each replica, with variables of the replica's own."""
    name = type(model).__name__
    _log.info("The train_step of %s runs on each replica with variables of its own: %s.", name, why)
    if not has_copies(strategy):
        raise StepError(
            f"{class_name(strategy)} has one copy of a variable for all replicas, so the train_step of {name} "
            f"would have to make one update, at its end: {why}. Use mirrored or multi_worker, or "
            "Step.from_loss(model, optimizer, loss_fn)."
        ) from None
    if options.asked:
        raise StepError(
            f"Step.from_compiled was given {', '.join(options.asked)} for {name}, whose train_step would have to make "
            f"one update, at its end: {why}. Write the option into the train_step."
        ) from None
    return KerasStep(strategy, model, options, element_spec if why.of_data else None)


def of_functions(options: Iterable[str]) -> list[str]:
    """Return the names of those that a step with variables does not have."""
    return sorted({*options} - {"unchecked", "clip_norm", "clip_value", "transforms"})


def options_of_keras(model: KerasModel, options: dict[str, Any]) -> Options:
    """Return the options of a step that runs the model's own `train_step`."""
    require_compiled(model)
    private.check(model=model)
    given = {"jit_compile": False} | options
    own = {"runs_keras": True, "as_compiled": True, "asked": of_functions(options), "compiled": compiled_config(model)}
    return Options({}, {}, **given, **own)


def require_supervised(step: Supervised | KerasStep) -> Supervised:
    """Refuse a model with a `train_step` of its own where a loss and its gradient are asked for."""
    if isinstance(step, Supervised):
        return step
    raise StepError(
        f"{type(step.model).__name__} overrides what Keras's training calls, and such a model trains in a "
        "mk.train.Loop only. For a training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
    )
