"""The variants of a step, each in its own file: this table alone names them all, and the first one that fits is taken.

A variant that computes something else altogether, such as a user's own step, is a `LoopStep` of its own.
"""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer
from mirrorkit.train.step.changing import Changing
from mirrorkit.train.step.devices import OneDevice
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.replicated_optimizer import ReplicatedOptimizer
from mirrorkit.train.step.several_devices import SeveralDevices
from mirrorkit.train.step.sharded_optimizer import ShardedOptimizer
from mirrorkit.train.step.whole_batch import EachExample, WholeBatch

# Where the variables of a replica lie.
_DEVICES: tuple[type[OneDevice], ...] = (SeveralDevices, OneDevice)
# Which slots a replica has, and which weights it updates.
_OPTIMIZERS: tuple[type[ReplicatedOptimizer], ...] = (ShardedOptimizer, ReplicatedOptimizer)
# What the loss of an example may depend on.
_LOSSES: tuple[type[EachExample], ...] = (WholeBatch, EachExample)


def check_options(options: Options, optimizer: KerasOptimizer) -> None:
    """Refuse options, and an optimizer, that exclude each other; when a step is made, before there is a strategy."""
    _optimizer(options).check(options, optimizer)
    _loss(options).check(options, replicas=1)


def check_model(options: Options, strategy: tf.distribute.Strategy, model: KerasModel) -> None:
    """Refuse a strategy or model for which these options cannot be."""
    _loss(options).check(options, strategy.num_replicas_in_sync)
    _optimizer(options).check_model(strategy, model)


def make_optimizer(
    options: Options, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, model: KerasModel
) -> ReplicatedOptimizer:
    """Build the optimizer, in the strategy's scope; on one replica there is nothing to shard."""
    kind = _optimizer(options) if strategy.num_replicas_in_sync > 1 else ReplicatedOptimizer
    return kind(strategy, optimizer, model)


def make_devices(options: Options, strategy: tf.distribute.Strategy, variables: Changing) -> OneDevice:
    """Say where the variables lie."""
    devices = next(kind for kind in _DEVICES if kind.fits(strategy, variables))(strategy, variables)
    devices.check(options)
    return devices


def make_loss(options: Options, shards: int) -> EachExample:
    """Say what the loss of an example may depend on."""
    return _loss(options)(shards)


def _optimizer(options: Options) -> type[ReplicatedOptimizer]:
    return next(kind for kind in _OPTIMIZERS if kind.fits(options))


def _loss(options: Options) -> type[EachExample]:
    return next(kind for kind in _LOSSES if kind.fits(options))
