"""A user's own step in Loop, and what the protocol refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import ByTrain, Line, train_by_hand
from training_helpers import KINDS, THREE, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError


def test_it_trains_on_replicas_as_by_hand(loop_over: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    line, twin = loop_over(Line, steps_per_call=2), Line()
    data = plain_dataset(*numbers, batch=11)  # the last batch holds 5
    report = line.fit(data, epochs=2, verbose=0)
    losses = np.reshape(train_by_hand(twin.net, twin.optimizer, [*data, *data]), [2, 6])
    assert largest_difference(line.step.net.get_weights(), twin.net.get_weights()) < 1e-5  # measured: 6e-8
    np.testing.assert_allclose(report.history["loss"], np.average(losses, 1, [11] * 5 + [5]), rtol=1e-5)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(60, 6)] * 2
    assert_replicas_equal(line)


def test_any_log_that_is_not_finite_stops_the_run(loop_over: Any, numbers: Any) -> None:
    x = numbers[0].copy()
    x[35] = np.nan
    with pytest.raises(NonFiniteLossError) as error:
        loop_over(Line, steps_per_call=2).fit(plain_dataset(x, numbers[1], batch=11), verbose=0)
    assert error.value.step == 3


class _Average:
    """The smallest step: moves one number to the mean of the data."""

    def __init__(self, logs: Any = None) -> None:
        self._logs = logs or (lambda mean, sums: {"loss": mean})

    def build(self, strategy: tf.distribute.Strategy) -> None:
        self.value = tf.Variable(0.0)  # `build` is called in the scope
        self.variables = [self.value]
        self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        return {"sum": tf.reduce_sum(batch), "examples": tf.cast(tf.shape(batch)[0], tf.float32)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        return self._update(sums)

    def _new_values(self, sums: Any, values: Any) -> Any:
        mean = sums["sum"] / sums["examples"]
        return [mean], self._logs(mean, sums)


def test_evaluate_and_predict_are_for_steps_that_say_how(strategy_of: Any) -> None:
    loop = mk.train.Loop(strategy_of("one_device", 1), _Average())
    data = tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4)
    for call in (loop.evaluate, loop.predict):
        with pytest.raises(StepError, match="_Average only trains"):
            call(data)
    with pytest.raises(StepError, match="evaluate needs"):
        loop.fit(data, validation_data=data, verbose=0)


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_a_plain_tensorflow_variable_will_do(where: Any, strategy_of: Any) -> None:
    step = _Average()
    loop = mk.train.Loop(strategy_of(*where), step)
    data = tf.data.Dataset.from_tensor_slices(tf.range(4, dtype=tf.float32)).batch(4)  # 2, 2, 0 on three replicas
    report = loop.fit(data, verbose=0)
    assert report.history == {"loss": [1.5]}
    copies = loop.strategy.experimental_local_results(step.value)
    assert [float(copy) for copy in copies] == [1.5] * (1 if where[0] == "central_storage" else where[1])


@pytest.mark.parametrize(
    ("logs", "match"),
    [
        (lambda mean, sums: {"loss": tf.stack([mean, mean])}, r"\['loss'\].*scalars"),
        (lambda mean, sums: {"loss": mean, "lr": 0.1}, r"\['lr'\].*scalars"),
    ],
    ids=["vector", "number"],
)
def test_logs_that_are_none(logs: Any, match: str, strategy_of: Any) -> None:
    loop = mk.train.Loop(strategy_of("mirrored", 2), _Average(logs))
    with pytest.raises(StepError, match=match):
        loop.fit(tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4), verbose=0)


def test_an_update_can_leave_a_variable_alone(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        moved, left = tf.Variable(1.0), keras.Variable(2.0)
    update = mk.train.Update(strategy, [moved, left], lambda sums, values: ([values[0] + sums, None], sums))
    total = tf.function(lambda: update(strategy.run(lambda: tf.constant(3.0))), autograph=False)()
    assert float(total) == 6.0  # summed over both replicas
    assert [float(copy) for copy in strategy.experimental_local_results(moved)] == [7.0, 7.0]
    assert float(left.numpy()) == 2.0


def test_sums_of_unknown_shape_are_refused(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    update = mk.train.Update(strategy, [], lambda sums, values: ([], sums))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,))])
    def run(x: tf.Tensor) -> Any:
        return update(strategy.run(lambda: x))

    with pytest.raises(StepError, match="static shape"):
        run(tf.ones(3))


# --- a step that evaluates, predicts, and has several nets


L = keras.layers


def test_evaluate_and_predict_as_keras(loop_over: Any, numbers: Any) -> None:
    """Exact with a partial last batch (60 in batches of 13: the last one has 8, on three replicas 3, 3, 2)."""
    loop = loop_over(Line, THREE)
    data = plain_dataset(*numbers, batch=13)
    x, y = numbers
    expected = np.asarray(loop.step.net(x))
    logs = loop.evaluate(data)
    assert logs == {
        "loss": pytest.approx(np.mean((expected - y) ** 2), rel=1e-5),
        "mae": pytest.approx(np.mean(np.abs(expected - y)), rel=1e-5),
    }
    np.testing.assert_allclose(loop.predict(data)["y"], expected, rtol=1e-6)


def test_a_share_without_examples_is_not_tested(loop_over: Any, numbers: Any) -> None:
    class Fails(Line):
        def test(self, batch: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(batch[0])[0])]):
                return {"first": tf.identity(batch[0][:, 0])}

    x, y = (part[:21] for part in numbers)  # the last batch of 20 holds one: the second replica has none
    logs = loop_over(Fails).evaluate(plain_dataset(x, y, batch=20))
    assert logs["first"] == pytest.approx(x[:, 0].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (lambda x, y: {"loss": tf.reduce_mean(x)}, r"\(\).*'loss'"),
        (lambda x, y: {"loss": x}, "per example.*'loss'"),
    ],
    ids=["scalar", "several"],
)
def test_what_test_must_return(returned: Any, match: str, loop_over: Any, numbers: Any) -> None:
    class Wrong(Line):
        def test(self, batch: Any) -> Any:
            return returned(*batch)

    with pytest.raises(StepError, match=match):
        loop_over(Wrong).evaluate(plain_dataset(*numbers, batch=20))


class Gathers(Line):
    """Its test looks at the rows of all replicas, draws, and assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = L.GaussianNoise(1.0)
        self.last = keras.Variable(0.0, trainable=False, name="last")

    @property
    def variables(self) -> list[Any]:
        return [*super().variables, self.last]

    def test(self, batch: Any) -> Any:
        x = batch[0]
        self.last.assign(tf.reduce_mean(x))
        drawn = mk.train.all_gather(self.noise(tf.zeros_like(x), training=True))
        different = tf.unique(drawn[:, 0]).y
        return {"different": tf.repeat(tf.size(different), tf.shape(x)[0])}


@pytest.mark.parametrize("rows", [20, 1])  # of one row the second replica has none, so each has all
def test_a_test_that_gathers_draws_by_replica_and_leaves_copies_equal(rows: int, loop_over: Any, numbers: Any) -> None:
    loop, (x, y) = loop_over(Gathers), (part[:rows] for part in numbers)
    assert loop.evaluate(plain_dataset(x, y, batch=20)) == {"different": rows}
    copies = loop.strategy.experimental_local_results(loop.step.last.value)
    assert [float(copy) for copy in copies] == [pytest.approx(x.mean(), rel=1e-5)] * 2
    assert float(copies[0]) == float(copies[1])


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


def test_callbacks_see_a_model_that_holds_the_nets(loop_over: Any, numbers: Any, tmp_path: Any) -> None:
    loop = loop_over(Alternating)
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
def test_callbacks_that_look_for_an_optimizer(loop_over: Any, numbers: Any, tmp_path: Any) -> None:
    """One of Keras that sets its rate raises where the step shows none; one that only reads it does not."""
    data = plain_dataset(*numbers, batch=20)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 if epoch else 0.0)
    loop = loop_over(Alternating)
    with pytest.raises((ValueError, AttributeError), match="learning_rate"):
        loop.fit(data, callbacks=[scheduler], verbose=0)
    loop.fit(data, callbacks=[keras.callbacks.TensorBoard(tmp_path)], verbose=0)

    class Shown(Line):
        @property
        def model(self) -> Any:
            return self.net

    loop = loop_over(Shown)
    loop.step.net.compile(loop.step.optimizer)
    before = loop.step.net.get_weights()
    loop.fit(data, callbacks=[scheduler], verbose=0)
    assert largest_difference(loop.step.net.get_weights(), before) == 0  # at a rate of 0
    assert loop.fit(data, initial_epoch=1, epochs=2, callbacks=[scheduler], verbose=0).history["learning_rate"] == [0.5]
    assert largest_difference(loop.step.net.get_weights(), before) > 1e-3


def test_export_asks_which_model(loop_over: Any, tmp_path: Any) -> None:
    loop = loop_over(Alternating)
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


def test_what_looks_at_a_step_takes_one_that_trains_by_itself(loop_over: Any, numbers: Any) -> None:
    loop = loop_over(ByTrain)
    x, y = numbers[0].copy(), numbers[1]
    x[45] = np.nan
    with pytest.raises(NonFiniteLossError, match=r"batch 2: .*4 NaN"):
        loop.fit(plain_dataset(x, y, batch=20), callbacks=[mk.checks.NanWatch()], verbose=0)
    data = plain_dataset(*numbers, batch=20)
    assert mk.testing.assert_equivalent(ByTrain, data, replicas=(2,), steps=2)
    with pytest.raises(StepError, match="ByTrain trains"):
        mk.testing.assert_equivalent(ByTrain, data, replicas=(2,), steps=2, reference="shards")
