"""Random numbers in a custom step: each replica draws its own, and the states of the generators stay equal."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import ByTrain, Line

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class Noisy(Line):
    """Logs what each replica has drawn, by its number."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.seed, self.draw = keras.random.SeedGenerator(5), draw

    def compute(self, batch: Any) -> Any:
        return {**super().compute(batch), "drawn": self.draw(self.seed)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        drawn = strategy.experimental_local_results(sums.pop("drawn"))
        logs = super().update(strategy, sums)
        with tf.device("CPU"):
            return {**logs, **{str(i): tf.identity(number) for i, number in enumerate(drawn)}}


class Trains(ByTrain, Noisy):
    """The same by a `train`, which calls `strategy.run` itself."""


def _drawn(strategy: Any, draw: Any, kind: Any = Noisy, unchecked: Any = ()) -> list[float]:
    with strategy.scope():
        step = kind(draw)
    step.unchecked = unchecked
    loop = mk.train.Loop(strategy, step, steps_per_call=1)
    history = loop.fit(mk.data.batches(mk.data.arrays(X, X[:, :1]), global_batch_size=8), verbose=0).history
    assert len({tuple(copy.numpy()) for copy in strategy.experimental_local_results(step.seed.state.value)}) == 1
    return [history[str(i)][0] for i in range(strategy.num_replicas_in_sync)]


def _draw(seed: Any) -> Any:
    mk.train.all_reduce(tf.zeros([]))  # TensorFlow traces the next replica in the midst of this one
    return keras.random.uniform([], seed=seed)


@pytest.mark.parametrize("kind", [Noisy, pytest.param(Trains, marks=pytest.mark.slow)])
def test_each_replica_of_a_custom_step_draws_its_own(kind: Any, strategy_of: Any) -> None:
    first, second = _drawn(strategy_of("mirrored", 2), _draw, kind)
    assert first != second


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda seed: tf.function(lambda: _draw_alone(seed))(), id="within a tf.function"),
        pytest.param(lambda seed: _by_replica(seed), id="within seeds_by_replica"),
    ],
)
def test_the_same_within(draw: Any, strategy_of: Any) -> None:
    plain, within = (_drawn(strategy_of("mirrored", 2), one) for one in (_draw_alone, draw))
    assert plain == within


def _draw_alone(seed: Any) -> Any:
    return keras.random.uniform([], seed=seed)


def _by_replica(seed: Any) -> Any:
    with mk.train.seeds_by_replica():
        return _draw_alone(seed)


def test_replicas_draw_the_same_where_the_step_says_so_and_one_what_keras_draws(strategy_of: Any) -> None:
    first, second = _drawn(strategy_of("mirrored", 2), _draw, unchecked=("seeds",))
    (alone,) = _drawn(strategy_of("one_device", 1), _draw)
    seed = keras.random.SeedGenerator(5)
    of_keras = [keras.random.uniform([], seed=seed) for _ in range(2)]
    assert first == second == alone == pytest.approx(np.mean(of_keras))


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


def test_seeds_by_replica_outside_of_a_replica(strategy_of: Any) -> None:
    block = mk.train.seeds_by_replica()
    with strategy_of("mirrored", 2).scope(), pytest.raises(StepError, match="outside of a replica"):
        block.__enter__()


FRESH = """
import keras, numpy as np, tensorflow as tf, mirrorkit as mk
strategy = mk.strategy.create("mirrored", devices="cpu:2")
class Own:
    def __init__(self):
        self.seed = keras.random.SeedGenerator(5)
    def build(self, strategy): pass
    def train(self, strategy, batch):
        drawn = strategy.run(lambda: keras.random.uniform([], seed=self.seed))
        return {str(i): tf.identity(one) for i, one in enumerate(strategy.experimental_local_results(drawn))}
with strategy.scope():
    step = Own()
x = np.ones([8, 1], "float32")
history = mk.train.Loop(strategy, step).fit(mk.data.batches(mk.data.arrays(x), global_batch_size=8), verbose=0).history
print(history["0"] != history["1"])
"""


@pytest.mark.slow
def test_where_nothing_else_has_asked_for_what_is_replaced() -> None:
    """Keras's function is replaced when it is needed first, which may be here."""
    ran = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.splitlines()[-1] == "True"
