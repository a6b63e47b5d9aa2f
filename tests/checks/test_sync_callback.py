"""InSync: a step that lets the replicas drift is stopped, or put right; a sound one goes on undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.checks.sync import Replicas
from mirrorkit.errors import OutOfSyncError


class Unreduced:
    """A user's step that forgets to reduce: each replica follows its own gradient."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.variables = model.trainable_variables

    def build(self, strategy: Any) -> None:
        self.strategy = strategy

    def compute(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x) - y))
        return tape.gradient(loss, self.variables), loss

    def update(self, strategy: Any, sums: Any) -> Any:
        def write(gradients: Any) -> None:
            replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
            for variable, gradient in zip(self.variables, gradients, strict=True):
                strategy.experimental_local_results(variable.value)[replica].assign_sub(0.01 * gradient)

        gradients, losses = sums
        strategy.run(write, args=(gradients,))
        return {"loss": strategy.reduce("MEAN", losses, axis=None)}


@pytest.fixture
def unreduced(strategy_of: Callable[..., Any]) -> mk.train.Loop:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="line")])
    return mk.train.Loop(strategy, Unreduced(model), steps_per_call=2)


class Steps(keras.callbacks.Callback):  # type: ignore[name-defined]
    done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done = batch + 1


def test_a_forgotten_reduction_is_named_when_it_is_looked_for(unreduced: Any, numbers: Any) -> None:
    steps = Steps()
    with pytest.raises(OutOfSyncError, match="line/kernel' on replica 1") as caught:
        unreduced.fit(numbers, callbacks=[steps, mk.checks.InSync(every=6)], verbose=0)
    assert steps.done == 6
    report = caught.value.report
    assert isinstance(report, mk.checks.SyncReport)
    assert report.differing == tuple(variable.path for variable in unreduced.step.variables)


def test_repair_warns_and_goes_on(unreduced: Any, numbers: Any) -> None:
    with pytest.warns(UserWarning, match="line/kernel.*replica 0's values") as caught:
        report = unreduced.fit(numbers, callbacks=[mk.checks.InSync(every=4, repair=True)], verbose=0)
    told = [warning for warning in caught if "replica 0's values" in str(warning.message)]
    assert len(told) == 3  # after 4 and 8 steps, and at the end
    assert report.epochs[0].steps == 10
    assert mk.checks.in_sync(unreduced.strategy, unreduced.step.variables)


@pytest.mark.slow
def test_a_right_step_is_looked_at_every_so_many_steps_and_at_the_end_slots_too(
    two_replicas: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, step = two_replicas
    steps, at = Steps(), []
    original = Replicas.check
    monkeypatch.setattr(Replicas, "check", lambda self, **how: at.append(steps.done) or original(self, **how))
    loop = mk.train.Loop(strategy, step, steps_per_call=2)
    loop.fit(numbers, epochs=2, callbacks=[steps, mk.checks.InSync(every=8)], verbose=0)
    assert at == [8, 6, 10]  # 8, 16 and 20 steps of the run
    at.clear()
    slot = step.optimizer.variables[-1]
    strategy.experimental_local_results(slot.value)[1].assign_add([1.0])
    with pytest.raises(OutOfSyncError) as caught:
        loop.fit(numbers, callbacks=[steps, mk.checks.InSync()], verbose=0)
    assert at == [10]
    assert slot.path in caught.value.report.differing


def test_under_keras_fit_it_shows_that_batch_norm_drifts_apart(strategy_of: Callable[..., Any], numbers: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
    batches = tf.data.Dataset.from_tensor_slices(numbers.split.as_element()).batch(6)
    with pytest.raises(OutOfSyncError, match="moving_mean' on replica 1"):
        model.fit(batches, callbacks=[mk.checks.InSync(every=5)], verbose=0)
