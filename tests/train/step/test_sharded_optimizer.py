"""`shard_optimizer`: each replica keeps 1/N of the slots, and the weights have the bits that they have without."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from device_choice import device_name
from step_helpers import cut, train
from training_helpers import line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.step.sharded_slots import whole_values
from mirrorkit.variables import copies, is_sharded

L = keras.layers


class Unused(L.Layer):
    """Has a weight that no loss depends on, beside others that have a gradient."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")
        self.unused = self.add_weight(shape=(3, 5), initializer="ones", name="unused")

    def call(self, x: Any) -> Any:
        return x * self.scale


def _scheduled() -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=0.01)


def test_slots_of_a_weight_without_gradient_stay(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), Unused(), L.Dense(1)), _scheduled, shard_optimizer=True)
    (slot,) = [v for v in loop.step.saved_variables if "unused_unused" in v.path]
    slot.assign(np.full((3, 5), 2.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(loop, cut(*numbers, sizes=[10, 10]))
    np.testing.assert_array_equal(slot.numpy(), np.full((3, 5), 2.5))


def test_each_replica_has_its_share_of_the_slots(make_loop: Any) -> None:
    """Counted from the variables on each device; only learning rate and iterations are on all."""
    replicas = 3

    def net() -> Any:
        return sequential((4,), L.Dense(13), L.BatchNormalization(), L.Dense(11), L.Dense(1))

    def sizes(sharded: bool) -> list[int]:
        loop = make_loop(
            ("mirrored", replicas), net, lambda: keras.optimizers.Adam(amsgrad=True), shard_optimizer=sharded
        )
        loop.step.build(loop.strategy)
        found = [0] * replicas
        for variable in loop.step.optimizer.variables[2:]:
            own = copies(variable)
            assert [copy.device.endswith(device_name(i)) for i, copy in enumerate(own)] == [True] * replicas
            for i, copy in enumerate(own):
                found[i] += int(np.prod(copy.shape)) * copy.dtype.size
        return found

    whole, pieces = sizes(False), sizes(True)
    weights = 4 * 13 + 13 + 26 + 13 * 11 + 11 + 12
    assert whole == [3 * 4 * weights] * replicas
    assert all(size <= whole[0] / replicas * 1.05 for size in pieces)
    assert sum(pieces) >= whole[0]


@pytest.mark.slow
def test_by_hand_outside_of_a_function(make_loop: Any, numbers: Any) -> None:
    """`step.compute` and `step.update`, eagerly; the bits are the same. In a fit: checkpoints/test_sharded_slots.py."""
    found = []
    for sharded in (False, True):
        keras.utils.clear_session(free_memory=False)
        loop = make_loop(("mirrored", 2), line_net, lambda: keras.optimizers.Adam(0.1), shard_optimizer=sharded)
        loop.step.build(loop.strategy)
        for x, y in cut(*numbers, sizes=[12, 12]):
            halves = loop.strategy.experimental_distribute_values_from_function(
                lambda context, x=x, y=y: tuple(part[context.replica_id_in_sync_group :: 2] for part in (x, y))
            )
            loop.step.update(loop.strategy, loop.strategy.run(loop.step.compute, args=(halves,)))
        found.append(whole_values(loop.step.saved_variables))
    np.testing.assert_equal(*found)


def test_the_check_of_the_replicas_and_warm_up(make_loop: Any, numbers: Any) -> None:
    """Pieces are meant to differ, weights are not; a warm-up puts back every replica's piece."""
    loop = make_loop(("mirrored", 2), line_net, lambda: keras.optimizers.Adam(0.01), shard_optimizer=True)
    data = plain_dataset(*numbers, batch=20)
    loop.fit(data, verbose=0, callbacks=[mk.checks.InSync(every=1), mk.checks.NanWatch(every=1)])
    before = [[copy.numpy() for copy in copies(v)] for v in loop.step.variables]
    (momentum, *_) = [own for own, v in zip(before, loop.step.variables, strict=True) if is_sharded(v)]
    assert not np.array_equal(*momentum)
    assert mk.checks.in_sync(loop.strategy, loop.step)
    assert mk.checks.in_sync(loop.strategy, loop.step.optimizer)
    assert mk.checks.repair(loop.strategy, loop.step)
    loop.warm_up(plain_dataset(numbers[0], numbers[1] + 1, batch=14))
    np.testing.assert_equal([[copy.numpy() for copy in copies(v)] for v in loop.step.variables], before)
    copies(loop.step.model.trainable_variables[0])[1].assign_add(np.ones((4, 1)))
    assert mk.checks.in_sync(loop.strategy, loop.step).differing == ("sequential/line/kernel",)


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        (lambda: keras.optimizers.Lamb(), r"\.Lamb"),
        (lambda: type("Mine", (keras.optimizers.SGD,), {})(), r"\.Mine"),
        (lambda: keras.optimizers.SGD(clipnorm=0.5), "clipnorm=0.5"),
        (lambda: keras.optimizers.SGD(global_clipnorm=2.0), "global_clipnorm=2.0"),
        (lambda: keras.optimizers.SGD(use_ema=True), "use_ema=True"),
    ],
)
@pytest.mark.filterwarnings("ignore:SGD.use_ema")
def test_optimizers_that_are_refused(optimizer: Any, found: str, make_loop: Any) -> None:
    with pytest.raises(StepError, match=f"(?s){found}.*clip_norm and ema of Step"):
        make_loop(("mirrored", 2), line_net, optimizer, shard_optimizer=True)


def test_what_else_is_refused(make_loop: Any, strategy_of: Any) -> None:
    model, built = line_net(), keras.optimizers.SGD()
    built.build(model.trainable_variables)
    with pytest.raises(StepError, match="is built already"):
        mk.train.Step(model, built, loss="mse", shard_optimizer=True)
    with pytest.raises(StepError, match="CentralStorageStrategy has no copy"):
        make_loop(("central_storage", 2), line_net, shard_optimizer=True)

    def constrained() -> Any:
        return sequential((4,), L.Dense(1, kernel_constraint="non_neg", name="held"))

    with pytest.raises(StepError, match=r"held/kernel' .*NonNeg"):
        make_loop(("mirrored", 2), constrained, shard_optimizer=True)
    strategy = strategy_of("one_device", 1)
    with mk.parallel.Layout({"first": 0, "second": 1}, devices="cpu:2"), strategy.scope():
        model = sequential((4,), L.Dense(2, name="first"), L.Dense(1, name="second"))
        optimizer = keras.optimizers.SGD()
    step = mk.train.Step(model, optimizer, loss="mse", shard_optimizer=True)
    with pytest.raises(StepError, match="several devices"):
        step.build(strategy)
    assert not optimizer.built
