"""A step of the user's own that evaluates, predicts, and has several nets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Line
from training_helpers import THREE, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers


def _loop(strategy: Any, step: Any = Line, **options: Any) -> mk.train.Loop:
    with strategy.scope():
        made = step()
    return mk.train.Loop(strategy, made, **options)


def test_evaluate_and_predict_as_keras(strategy_of: Any, numbers: Any) -> None:
    """Exact with a partial last batch (60 in batches of 13: the last one has 8, on three replicas 3, 3, 2)."""
    loop = _loop(strategy_of(*THREE))
    data = plain_dataset(*numbers, batch=13)
    x, y = numbers
    expected = np.asarray(loop.step.net(x))
    logs = loop.evaluate(data)
    assert logs == {
        "loss": pytest.approx(np.mean((expected - y) ** 2), rel=1e-5),
        "mae": pytest.approx(np.mean(np.abs(expected - y)), rel=1e-5),
    }
    np.testing.assert_allclose(loop.predict(data)["y"], expected, rtol=1e-6)


def test_a_share_without_examples_is_not_tested(strategy_of: Any, numbers: Any) -> None:
    class Fails(Line):
        def test(self, batch: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(batch[0])[0])]):
                return {"first": tf.identity(batch[0][:, 0])}

    x, y = (part[:21] for part in numbers)  # the last batch of 20 holds one: the second replica has none
    logs = _loop(strategy_of("mirrored", 2), Fails).evaluate(plain_dataset(x, y, batch=20))
    assert logs["first"] == pytest.approx(x[:, 0].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (lambda x, y: tf.reduce_mean(x), "a dict of logs"),
        (lambda x, y: {"loss": tf.reduce_mean(x)}, r"\(\).*'loss'"),
        (lambda x, y: {"loss": x}, "per example.*'loss'"),
    ],
    ids=["no dict", "scalar", "several"],
)
def test_what_test_must_return(returned: Any, match: str, strategy_of: Any, numbers: Any) -> None:
    class Wrong(Line):
        def test(self, batch: Any) -> Any:
            return returned(*batch)

    with pytest.raises(StepError, match=match):
        _loop(strategy_of("mirrored", 2), Wrong).evaluate(plain_dataset(*numbers, batch=20))


class Alternating:
    """Two nets, each with its update of a batch; what two updates come to: the GAN of the corpus."""

    def __init__(self) -> None:
        self.painter, self.judge = (sequential((4,), L.Dense(1)) for _ in range(2))
        self.halves = {"judge_loss": self._step(self.judge), "painter_loss": self._step(self.painter)}

    def _step(self, net: Any) -> mk.train.Step:
        def loss_fn(batch: Any) -> Any:
            return (net(batch[0]) - batch[1])[:, 0] ** 2

        return mk.train.Step.from_loss(net, keras.optimizers.SGD(0.05), loss_fn)

    def build(self, strategy: tf.distribute.Strategy) -> None:
        for half in self.halves.values():
            half.build(strategy)

    @property
    def variables(self) -> list[Any]:
        return [variable for half in self.halves.values() for variable in half.variables]

    def train(self, strategy: tf.distribute.Strategy, batch: Any) -> dict[str, tf.Tensor]:
        return {
            name: half.update(strategy, strategy.run(half.compute, args=(batch,)))["loss"]
            for name, half in self.halves.items()
        }


def test_callbacks_see_a_model_that_holds_the_nets(strategy_of: Any, numbers: Any, tmp_path: Any) -> None:
    loop = _loop(strategy_of("mirrored", 2), Alternating)
    data = plain_dataset(*numbers, batch=20)
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    stopping = keras.callbacks.EarlyStopping("judge_loss", mode="max", min_delta=1e9, restore_best_weights=True)
    report = loop.fit(data, epochs=4, callbacks=[saver, stopping], verbose=0)
    assert len(report.epochs) == 2
    assert isinstance(stopping.model, keras.Model)
    trained = loop.step.painter.get_weights()
    stopping.model.load_weights(tmp_path / "2.weights.h5")
    assert largest_difference(loop.step.painter.get_weights(), trained) > 1e-4  # the best ones were those of epoch 1
    stopping.model.load_weights(tmp_path / "1.weights.h5")
    assert largest_difference(loop.step.painter.get_weights(), trained) == 0


@pytest.mark.slow
def test_callbacks_that_look_for_an_optimizer(strategy_of: Any, numbers: Any, tmp_path: Any) -> None:
    """One of Keras that sets its rate raises where the step shows none; one that only reads it does not."""
    data = plain_dataset(*numbers, batch=20)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 if epoch else 0.0)
    loop = _loop(strategy_of("mirrored", 2), Alternating)
    with pytest.raises((ValueError, AttributeError), match="learning_rate"):
        loop.fit(data, callbacks=[scheduler], verbose=0)
    loop.fit(data, callbacks=[keras.callbacks.TensorBoard(tmp_path)], verbose=0)

    class Shown(Line):
        @property
        def model(self) -> Any:
            return self.net

    loop = _loop(strategy_of("mirrored", 2), Shown)
    loop.step.net.compile(loop.step.optimizer)
    before = loop.step.net.get_weights()
    loop.fit(data, callbacks=[scheduler], verbose=0)
    assert largest_difference(loop.step.net.get_weights(), before) == 0  # at a rate of 0
    assert loop.fit(data, initial_epoch=1, epochs=2, callbacks=[scheduler], verbose=0).history["learning_rate"] == [0.5]
    assert largest_difference(loop.step.net.get_weights(), before) > 1e-3


def test_export_asks_which_model(strategy_of: Any, tmp_path: Any) -> None:
    loop = _loop(strategy_of("mirrored", 2), Alternating)
    for of in (loop, loop.step):
        with pytest.raises(StepError, match=r"Alternating.*export the model itself"):
            mk.train.export(of, tmp_path / "all.keras")
    mk.train.export(loop.step.painter, tmp_path / "painter.keras")
    assert keras.saving.load_model(tmp_path / "painter.keras").count_params() == loop.step.painter.count_params()


def test_a_step_without_any_way_to_train(strategy_of: Any) -> None:
    class Nothing:
        def build(self, strategy: Any) -> None:
            """Nothing to build."""

    with pytest.raises(StepError, match="lacks compute, update"):
        mk.train.Loop(strategy_of("one_device", 1), Nothing())


class ByTrain(Line):
    """Trains by a method of its own, as one of several updates does."""

    def train(self, strategy: tf.distribute.Strategy, batch: Any) -> Any:
        return self.update(strategy, strategy.run(self.compute, args=(batch,)))


def test_what_looks_at_a_step_takes_one_that_trains_by_itself(strategy_of: Any, numbers: Any) -> None:
    loop = _loop(strategy_of("mirrored", 2), ByTrain)
    x, y = numbers[0].copy(), numbers[1]
    x[45] = np.nan
    with pytest.raises(NonFiniteLossError, match=r"batch 2: .*4 NaN"):
        loop.fit(plain_dataset(x, y, batch=20), callbacks=[mk.checks.NanWatch()], verbose=0)
    data = plain_dataset(*numbers, batch=20)
    assert mk.testing.assert_equivalent(ByTrain, data, replicas=(2,), steps=2)
    with pytest.raises(StepError, match="ByTrain trains"):
        mk.testing.assert_equivalent(ByTrain, data, replicas=(2,), steps=2, reference="shards")
