"""Build what a `Step` was given, for a strategy: the model where it is not built, then the `LoopStep` that computes."""

from __future__ import annotations

import dataclasses
import logging

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer, Nest, Spec
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name, has_copies
from mirrorkit.train.keras_model import building
from mirrorkit.train.keras_model.outputs import as_computed
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction
from mirrorkit.train.replica_code.step_function import build_as_it_trains, overrides
from mirrorkit.train.requirements.data import check_tensors
from mirrorkit.train.requirements.model import check_model, check_optimizer
from mirrorkit.train.requirements.same_rows import require_same_rows
from mirrorkit.train.step.keras_compile import CompiledModel, without_scale
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.measured import Measured
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
    if element_spec is None and options.runs_keras:
        raise StepError(
            f"How the train_step of {type(model).__name__} trains is known when it has seen data, so it trains in a "
            "Loop only. Call loop.warm_up(data) before loop.restore; `fit` with Checkpoints restores by itself. For a "
            "training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
        )
    if options.runs_keras:
        build_as_it_trains(model, element_spec, strategy)
    else:
        if element_spec is not None and not building.is_built(model):
            batch = options.unpack(element_spec)
            check_tensors(tuple(batch))
            require_same_rows(batch.x if batch.y is None else batch.present)
            building.build(model, batch, strategy)
        check_model(model, scaled=options.loss_scale is not None, trains=options.trains)
    trained = _trained(strategy, model, optimizer, options)
    measured = Measured(trained, model, strategy, options)
    shards = strategy.num_replicas_in_sync * options.accumulate
    own = OwnStep(
        trained,
        strategy.num_replicas_in_sync,
        None if options.whole_batch else _refused(shards),
        measured,
        by_user=options.runs_keras,
        separates=options.accumulate > 1,
    )
    only_for: Spec = () if options.as_compiled else None  # not yet decided
    if element_spec is not None and options.as_compiled:
        only_for = element_spec
        try:
            parts = options.unpack(element_spec)
            data = options.data((parts if options.runs_keras else as_computed(trained, parts)).present)
            found = own.found("train", data)
            if overrides(trained, "test_step"):
                own.found("test", data)
        except NotAFunction as why:
            if options.runs_keras or not why.of_data:
                return _with_variables(strategy, model, options, element_spec, why)
        except StepError:  # of data to predict for, perhaps, that has no targets; else it comes again
            if options.runs_keras:
                raise
        else:
            only_for = None
            optimizer = found.optimizer if options.runs_keras else optimizer
    if options.runs_keras:
        model.built = True  # as Keras's `fit` leaves it
        _log.info(
            "The train_step of %s runs as a function of values, with one update at its end.", type(model).__name__
        )
        optimizer, scale = without_scale(optimizer)
        options = options if options.loss_scale else dataclasses.replace(options, loss_scale=scale)
        check_optimizer(optimizer)
        check_model(model, scaled=options.loss_scale is not None)
    step = Supervised(strategy, model, optimizer, options, own=own, measured=measured, shown=shown)
    step.only_for = None if options.asked else only_for
    if isinstance(model, LossModel):  # now, when all are built
        _log.info("Step.from_loss trains %s.", ", ".join(model.trained_parts))
    shown.built = True  # Keras saves no weights of a model whose parts alone were called
    return step


def _refused(shards: int) -> Gather:
    """Return what `mk.train.all_gather` does where each of so many shards is computed by itself."""

    def gather(rows: Nest) -> Nest:
        if shards > 1:
            raise StepError(
                "mk.train.all_gather was called in a step that computes on each shard of a batch alone, where the rows "
                "of other shards are not available. Write a step whose loss is over the whole batch: "
                "mk.train.Step.from_loss(models, optimizer, loss_fn, whole_batch=True), without accumulate; or call it "
                "in `compute` of a step of your own."
            )
        return rows

    return gather


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
        return CompiledModel(model, optimizer, {**options.losses, **options.metrics}, trains=options.trains)


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
