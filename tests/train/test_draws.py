"""No random number is drawn twice: in training, evaluation and prediction, on any number of replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from drawing import ROWS, all_draws, assert_distinct, data, draws, noisy_net, shown

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "kind"),
    [(("mirrored", 2), "resident"), pytest.param(("central_storage", 2), "dataset", marks=pytest.mark.slow)],
    ids=str,
)
def test_every_draw_is_another(where: tuple[str, int], kind: str, strategy_of: Any) -> None:
    assert_distinct(all_draws(strategy_of(*where), kind))


def test_a_sampler_draws_anew_in_each_round_of_its_loop(strategy_of: Any) -> None:
    """What Keras itself cannot do in a pass without variables."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = noisy_net(), keras.optimizers.SGD(0.0)
        seed = keras.random.SeedGenerator(3)

    def sample(batch: Any) -> Any:
        def body(i: Any, found: Any) -> Any:
            return i + 1, tf.concat([found[:, 1:], keras.random.normal([tf.shape(found)[0], 1], seed=seed)], 1)

        return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([tf.shape(batch[0])[0], 3])))[1]

    step = mk.train.Step.from_loss([model, seed], optimizer, lambda batch: model(batch[0])[:, 0], predict=sample)
    loop = mk.train.Loop(strategy, step)
    found = np.concatenate([loop.predict(data()), loop.predict(data())])
    assert np.unique(found).size == 2 * 3 * ROWS
    assert {int(copy[1]) for copy in strategy.experimental_local_results(seed.state.value)} == {0}  # as it was


def test_several_draws_of_a_step_are_others_on_each_replica(strategy_of: Any) -> None:
    """Keras counts a seed up from draw to draw, which must not lead to the seed of another shard or step."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = noisy_net(), keras.optimizers.SGD(0.0)
        seed = keras.random.SeedGenerator(3)

    def loss_fn(batch: Any) -> Any:
        drawn = [keras.random.uniform([tf.shape(batch[0])[0]], seed=seed) for _ in range(2)]
        logs = {f"{i}_{name}": value for i, one in enumerate(drawn) for name, value in shown(batch, one).items()}
        return {"loss": model(batch[0])[:, 0], **logs}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss([model, seed], optimizer, loss_fn))
    history = loop.fit(data(), epochs=2, validation_data=data(), verbose=0).history
    found = np.concatenate([draws(history, f"{which}{i}_") for i in range(2) for which in ("", "val_")])
    assert np.unique(np.round(found.astype("float64"), 6)).size == found.size == 2 * 2 * 2 * ROWS


FEW = 2  # rows: one batch


class Halves:
    """Two critic updates and one of the generator, from the same weights; the halves log what one seed draws."""

    def __init__(self) -> None:
        self.noise = keras.random.SeedGenerator(0)
        self.nets = [keras.Sequential([keras.Input((1,)), L.Dense(1)]) for _ in range(2)]
        self.halves = [
            mk.train.Step.from_loss(
                [*self.nets, self.noise], keras.optimizers.SGD(0.0), self.loss_of(net), frozen=self.nets[1 - i]
            )
            for i, net in enumerate(self.nets)
        ]

    def loss_of(self, net: Any) -> Any:
        def loss(batch: Any) -> Any:
            drawn = keras.random.uniform([tf.shape(batch[0])[0]], seed=self.noise)
            return {"loss": net(batch[0])[:, 0], **shown(batch, drawn, FEW)}

        return loss

    def build(self, strategy: tf.distribute.Strategy) -> None:
        for half in self.halves:
            half.build(strategy)
        self.variables = [variable for half in self.halves for variable in half.variables]

    def train(self, strategy: tf.distribute.Strategy, batch: Any) -> Any:
        critic, generator = self.halves
        uses = [critic, critic, generator]
        sums = [strategy.run(half.compute, args=(batch,)) for half in uses]
        logs = [half.update(strategy, sum_) for half, sum_ in zip(uses, sums, strict=True)]
        return {f"{i}_{name}": value for i, log in enumerate(logs) for name, value in log.items()}


@pytest.mark.slow
def test_several_updates_of_a_batch_draw_other_numbers(loop_over: Any) -> None:
    history = loop_over(Halves).fit(data(rows=FEW), epochs=2, verbose=0).history
    found = np.concatenate([draws(history, f"{i}_", FEW) for i in range(3)])
    assert np.unique(np.round(found.astype("float64"), 6)).size == found.size == 3 * 2 * FEW


class OwnStep:
    """Tests and predicts with random numbers; says nothing of seeds."""

    def __init__(self) -> None:
        self.net = noisy_net()

    @property
    def variables(self) -> list[Any]:
        return list(self.net.variables)

    def build(self, strategy: tf.distribute.Strategy) -> None:
        self.all = mk.train.Update(
            strategy, self.net.trainable_variables, lambda sums, values: (values, {"loss": sums})
        )

    def compute(self, batch: Any) -> Any:
        with mk.train.seeds_by_replica():
            return tf.reduce_sum(self.net(batch[0]))

    def update(self, strategy: Any, sums: Any) -> Any:
        return self.all(sums)

    def test(self, batch: Any) -> Any:
        return shown(batch, self.net(batch[0])[:, 0])

    def predict(self, batch: Any) -> Any:
        with mk.train.seeds_by_replica():
            return self.net(batch[0])


def test_a_step_of_ones_own_tests_and_predicts_with_other_draws(loop_over: Any) -> None:
    loop, dataset = loop_over(OwnStep), data("dataset")
    history = loop.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
    found = [draws(history, "val_").ravel(), *(loop.predict(dataset).ravel() for _ in range(2))]
    assert np.unique(np.round(np.concatenate(found), 6)).size == 4 * ROWS
    assert mk.checks.in_sync(loop.strategy, loop.step)  # also where a replica had no rows
