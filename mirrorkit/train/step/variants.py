"""The variants of a step, each in its own file; they are chosen here and nowhere else.

A variant that computes something else altogether, such as a user's own step, is a `LoopStep` of its own.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.reduce import xla
from mirrorkit.train.step import tables
from mirrorkit.train.step.devices import OneDevice, SeveralDevices, are_placed
from mirrorkit.train.step.facts import Changing
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.replicated_optimizer import ReplicatedOptimizer
from mirrorkit.train.step.sharded_optimizer import ShardedOptimizer
from mirrorkit.train.step.tables import LAZY, TableOptimizer, tables_of


def require_compatible(options: Options, optimizer: KerasOptimizer | None) -> None:
    """Refuse options, and an optimizer, that exclude each other; when a step is made, before there is a strategy."""
    if not isinstance(options.jit_compile, bool) and options.jit_compile != xla.AUTO:
        raise StepError(f'jit_compile must be True, False or "auto"; found {options.jit_compile!r}.')
    if optimizer is None:
        options.check_untrained()
        return
    if options.shard_optimizer:
        ShardedOptimizer.check(optimizer)
    tables.check(options, optimizer)
    if options.whole_batch:
        _check_whole_batch(options, replicas=1)


def for_strategy(options: Options, strategy: tf.distribute.Strategy, model: KerasModel) -> Options:
    """Turn jit_compile="auto" off where it does not apply: as Keras does, and with tables that are updated in place.

    Refuses a strategy or model for which these options cannot be.
    """
    if options.whole_batch:
        _check_whole_batch(options, strategy.num_replicas_in_sync)
    if options.shard_optimizer:
        ShardedOptimizer.check_model(strategy, model)
    if options.jit_compile != xla.AUTO:
        return options
    if not xla.is_one_gpu(strategy):
        return dataclasses.replace(options, jit_compile=False)
    why = xla.unsupported(layers_of(model))
    if options.sparse_embeddings in (True, LAZY):
        why = f"sparse_embeddings={options.sparse_embeddings!r}"
    elif are_placed(strategy, [*model.trainable_variables, *model.non_trainable_variables]):
        why = "the model lies on several devices"
    if why:
        xla.tell_left_off(why)
        return dataclasses.replace(options, jit_compile=False)
    return options


def make_optimizer(
    options: Options, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, model: KerasModel
) -> ReplicatedOptimizer:
    """Build the optimizer, in the strategy's scope: which slots a replica has, and which weights it updates."""
    if options.shard_optimizer and strategy.num_replicas_in_sync > 1:  # on one there is nothing to shard
        return ShardedOptimizer(strategy, optimizer, model)
    if numbers := tables_of(options, strategy, optimizer, model):
        lazy = options.sparse_embeddings == LAZY
        return TableOptimizer(strategy, optimizer, model, numbers, lazy=lazy)
    return ReplicatedOptimizer(optimizer, model)


def make_devices(options: Options, strategy: tf.distribute.Strategy, variables: Changing) -> OneDevice:
    """Say where the variables of a replica lie."""
    if not SeveralDevices.fits(strategy, variables):
        return OneDevice(strategy)
    if options.jit_compile:
        raise StepError(
            "Step(jit_compile=True) was asked for, and the model lies on several devices (mk.parallel.Layout): an XLA "
            "program has one. Leave out jit_compile."
        )
    return SeveralDevices(strategy, variables)


def _check_whole_batch(options: Options, replicas: int) -> None:
    """Refuse `accumulate`, and `jit_compile` on several replicas, with a loss over the whole batch."""
    if options.accumulate > 1:
        raise StepError(
            f"whole_batch=True and accumulate={options.accumulate} exclude each other: a loss over the whole batch "
            f"sees the examples of one batch at a time, and {options.accumulate} batches are not one large batch "
            "to it. Take larger global batches, on more replicas or with a smaller model."
        )
    if options.jit_compile is True and replicas > 1:
        raise StepError(
            f"whole_batch=True and jit_compile=True exclude each other on {replicas} replicas: XLA compiles what a "
            "replica computes by itself, but this step gathers the rows of all replicas. Leave out jit_compile."
        )
