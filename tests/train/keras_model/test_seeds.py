"""Random numbers in a custom step: other ones on each replica, or an error that says how."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Line
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.check import first_batch_check

L = keras.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class OwnStep(Line):
    """Least squares with Dropout; `within` is entered around the call of the model."""

    def __init__(self, within: Any, layers: Any, noise: Any = None) -> None:
        super().__init__()
        self.net = sequential((4,), *layers, L.Dense(1))
        self.within, self.noise = within, noise

    @property
    def variables(self) -> list[Any]:
        return [*super().variables, *self.net.non_trainable_variables]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        self.optimizer.build(self.net.trainable_variables)
        self._update = mk.train.Update(strategy, super().variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        x, y = batch
        with self.within(), tf.GradientTape() as tape:
            y_pred = self.net(x if self.noise is None else x + self.noise(), training=True)
            loss = tf.reduce_sum((y_pred - y) ** 2)
        mk.train.all_reduce(loss)  # TensorFlow traces the next replica in the midst of this one
        with self.within():
            self.net(x, training=True)
        gradients = tape.gradient(loss, self.net.trainable_variables)
        return {"gradients": gradients, "loss": loss, "examples": tf.cast(tf.shape(x)[0], tf.float32)}


def _loop(strategy: Any, within: Any, *layers: Any, **options: Any) -> mk.train.Loop:
    with strategy.scope():
        step = OwnStep(within, layers or [L.Dropout(0.5, name="drop")], **options)
    return mk.train.Loop(strategy, step, steps_per_call=1)


def _data() -> mk.data.Batches:
    return mk.data.batches(mk.data.arrays(X, X[:, :1]), global_batch_size=8)


def test_equal_draws_are_found_before_the_first_step(strategy_of: Any) -> None:
    loop = _loop(strategy_of("mirrored", 2), contextlib.nullcontext)
    before = [variable.numpy() for variable in loop.step.variables]
    with pytest.raises(StepError, match=r"same random numbers.*drop.*seeds_by_replica"):
        loop.fit(_data(), verbose=0)
    for variable, value in zip(loop.step.variables, before, strict=True):  # the generator's state too
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.slow
def test_seeds_by_replica_trains_and_keeps_the_states_equal(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    loop = _loop(strategy, mk.train.seeds_by_replica)
    loop.fit(_data(), epochs=2, verbose=0)
    assert mk.checks.in_sync(strategy, loop.step)
    (state,) = loop.step.net.non_trainable_variables
    assert int(state.numpy()[1]) == 8  # two draws in each of four steps


def test_each_replica_draws_its_own_and_a_step_of_ours_the_same(strategy_of: Any) -> None:
    def masks(strategy: Any, within: Any) -> list[np.ndarray]:
        with strategy.scope():
            drop = L.Dropout(0.5, seed=5)
            drop.build((64,))

        @tf.function(autograph=False)
        def draw() -> Any:
            def on_replica() -> Any:
                with within():
                    return drop(tf.ones([64]), training=True)

            return strategy.run(on_replica)

        return [np.asarray(copy) for copy in strategy.experimental_local_results(draw())]

    first, second = masks(strategy_of("mirrored", 2), contextlib.nullcontext)
    np.testing.assert_array_equal(first, second)
    own_first, own_second = masks(strategy_of("mirrored", 2), mk.train.seeds_by_replica)
    assert np.any(own_first != own_second)
    again, _ = masks(strategy_of("mirrored", 2), contextlib.nullcontext)
    np.testing.assert_array_equal(first, again)  # outside of the block all is as it was
    (alone,) = masks(strategy_of("one_device", 1), mk.train.seeds_by_replica)
    np.testing.assert_array_equal(alone, own_first)


def test_the_check_leaves_what_the_step_does_not_name(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    loop = _loop(strategy, contextlib.nullcontext, L.Dense(2), noise=lambda: generator.normal([4]))
    check = first_batch_check(loop._passes.step)
    assert check is not None
    before = [copy.numpy() for copy in strategy.experimental_local_results(generator.state)]
    check((tf.constant(X), tf.constant(X[:, :1])))
    after = [copy.numpy() for copy in strategy.experimental_local_results(generator.state)]
    np.testing.assert_array_equal(before, after)
    assert first_batch_check(loop._passes.step) is None


def test_seeds_by_replica_outside_of_a_replica(strategy_of: Any) -> None:
    block = mk.train.seeds_by_replica()
    with strategy_of("mirrored", 2).scope(), pytest.raises(StepError, match="outside of a replica"):
        block.__enter__()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        *("unchecked", "folded by hand"),
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("constant seed", "one replica", "no draws")),
    ],
)
def test_what_is_not_refused(way: str, strategy_of: Any) -> None:
    def folded() -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.random.stateless_normal([4], tf.random.experimental.stateless_fold_in(generator.next(), replica))

    strategy = strategy_of("one_device", 1) if way == "one replica" else strategy_of("mirrored", 2)
    with strategy.scope():
        generator = keras.random.SeedGenerator(1)
    noise = {"folded by hand": folded, "constant seed": lambda: keras.random.normal((4,), seed=3)}.get(way)
    layers = () if way in ("unchecked", "one replica") else (L.Dense(2),)
    loop = _loop(strategy, contextlib.nullcontext, *layers, noise=noise)
    if way == "unchecked":
        loop.step.unchecked = ("seeds",)
    loop.fit(_data(), verbose=0)
