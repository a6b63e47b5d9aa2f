"""A step of the user's own that evaluates, predicts, and makes several updates of a batch, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Line
from training_helpers import THREE, largest_difference, plain_dataset

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
    """Two nets that play against each other: the judge is updated first, and the painter sees the new judge."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        self.painter = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.Dense(1)])
        self.judge = keras.Sequential([keras.Input((1,)), L.Dense(3, activation="tanh"), L.Dense(1)])
        self.optimizers = [keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.02)]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        nets = self.judge, self.painter
        self._updates = []
        for net, optimizer in zip(nets, self.optimizers, strict=True):
            with strategy.scope():
                optimizer.build(net.trainable_variables)
            variables = [*net.trainable_variables, *optimizer.variables]
            new_values = _Sgd(optimizer, len(net.trainable_variables))
            self._updates.append(mk.train.Update(strategy, variables, new_values))

    @property
    def variables(self) -> list[Any]:
        optimizers = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        return [*self.judge.variables, *self.painter.variables, *optimizers]

    def losses(self, x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
        fake = self.judge(self.painter(x))
        return tf.nn.softplus(-self.judge(y)) + tf.nn.softplus(fake), tf.nn.softplus(-fake)

    def train(self, strategy: tf.distribute.Strategy, batch: Any) -> dict[str, tf.Tensor]:
        logs = {}
        for i, (name, net) in enumerate([("judge", self.judge), ("painter", self.painter)]):

            def sums(batch: Any, i: int = i, net: Any = net) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(self.losses(*batch)[i])
                gradients = tape.gradient(loss, [variable.value for variable in net.trainable_variables])
                return {"gradients": gradients, "loss": loss, "examples": tf.cast(tf.shape(batch[0])[0], "float32")}

            logs[f"{name}_loss"] = self._updates[i](strategy.run(sums, args=(batch,)))
        return logs


class _Sgd:
    def __init__(self, optimizer: Any, count: int) -> None:
        self._optimizer = optimizer
        self._count = count

    def __call__(self, sums: Any, values: Any) -> Any:
        gradients = [gradient / sums["examples"] for gradient in sums["gradients"]]
        weights, slots = values[: self._count], values[self._count :]
        new = mk.optim.functional_apply(self._optimizer, weights, slots, gradients)
        return [*new[0], *new[1]], sums["loss"] / sums["examples"]


def _by_hand(data: Any, epochs: int) -> tuple[Alternating, list[float]]:
    """Both nets after some epochs in plain TensorFlow, and each epoch's mean loss of the painter."""
    step, means = Alternating(), []
    nets = step.judge, step.painter
    for _ in range(epochs):
        total, count = 0.0, 0
        for batch in data:
            for i, net in enumerate(nets):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(step.losses(*batch)[i])
                step.optimizers[i].apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
            total += float(loss) * len(batch[0])
            count += len(batch[0])
        means.append(total / count)
    return step, means


@pytest.mark.slow
def test_several_updates_of_a_batch_one_after_the_other(strategy_of: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, batch=22)  # the last one has 16, which three replicas cannot share equally
    expected, means = _by_hand(data, epochs=2)
    loop = _loop(strategy_of(*THREE), Alternating, steps_per_call=2)
    report = loop.fit(data, epochs=2, verbose=0)
    weights = [*loop.step.judge.get_weights(), *loop.step.painter.get_weights()]
    wanted = [*expected.judge.get_weights(), *expected.painter.get_weights()]
    assert largest_difference(weights, wanted) < 1e-6  # measured: 6e-8
    np.testing.assert_allclose(report.history["painter_loss"], means, rtol=1e-5)


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
