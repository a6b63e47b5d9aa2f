"""Loop: epochs, call lengths, data of every kind, exact evaluation, prediction, and what stops a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, keras_twin, largest_difference, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _line() -> Any:
    return keras.Sequential([keras.Input((4,)), L.Dense(1, name="line")])


@pytest.fixture(scope="module")
def line_step(strategy_of: Any) -> tuple[Any, Any, list[np.ndarray]]:
    """One linear model on two replicas, with its first values; compiled once for many tests."""
    strategy = strategy_of("mirrored", 2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = _line(), keras.optimizers.SGD(0.05, momentum=0.5)
    step = mk.train.Step(model, optimizer, loss="mse", metrics=["mae"])
    loop = mk.train.Loop(strategy, step, steps_per_call=2)
    return loop, step, [variable.value.numpy() for variable in step.variables]


@pytest.fixture
def line(line_step: Any) -> mk.train.Loop:
    """The loop of `line_step`, as new."""
    loop, step, first = line_step
    for variable, value in zip(step.variables, first, strict=True):
        variable.assign(value)
    return loop


@pytest.fixture
def recipe(numbers: Any) -> mk.data.Recipe:
    """Five batches of 12."""
    return mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True, seed=2)


def _weights(loop: mk.train.Loop) -> list[np.ndarray]:
    return [variable.value.numpy() for variable in loop.step.variables]


def _predict(weights: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    return x.astype("float64") @ weights[0] + weights[1]


# --- history and report


def test_history_has_the_keys_of_keras(line: Any, numbers: Any, recipe: Any) -> None:
    model = keras_twin(_line, line)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    data = plain_dataset(*numbers, batch=12)
    expected = model.fit(data, epochs=2, validation_data=data, verbose=0).history
    report = line.fit(data, epochs=2, validation_data=data, verbose=0)
    assert report.history.keys() == expected.keys() == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in expected.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-5)
        assert all(type(value) is float for value in report.history[name])


def test_report_counts_what_was_trained(line: Any, numbers: Any) -> None:
    report = line.fit(plain_dataset(*numbers, batch=13), epochs=3, verbose=0)  # 13, 13, 13, 13, 8
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(60, 5)] * 3
    assert all(epoch.seconds > 0 for epoch in report.epochs)
    assert (report.throughput.examples, report.throughput.steps) == (180, 15)
    assert report.examples_per_second > 0
    assert f"loss {report.history['loss'][-1]:.4f}" in report.summary()
    assert int(line.step.optimizer.iterations.numpy()) == 15


def test_validation_comes_as_often_as_asked(line: Any, recipe: Any) -> None:
    history = line.fit(recipe, epochs=5, validation_data=recipe, validation_freq=2, verbose=0).history
    assert [len(history[name]) for name in ("loss", "val_loss")] == [5, 2]


def test_validation_does_not_train(line: Any, recipe: Any, numbers: Any) -> None:
    line.fit(recipe, epochs=2, verbose=0)
    without = _weights(line)
    for variable, value in zip(line.step.variables, without, strict=True):
        np.testing.assert_array_equal(variable.value.numpy(), value)
    line.evaluate(plain_dataset(*numbers, batch=7))
    line.predict(plain_dataset(*numbers, batch=7))
    assert largest_difference(_weights(line), without) == 0


# --- epochs and call lengths


def test_fit_twice_goes_on(line: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, batch=12)
    first = line.fit(data, epochs=2, verbose=0)
    second = line.fit(data, epochs=1, verbose=0)
    in_two = _weights(line)
    assert len(second.history["loss"]) == 1
    assert second.history["loss"][0] < first.history["loss"][-1]
    assert int(line.step.optimizer.iterations.numpy()) == 15
    for variable, value in zip(line.step.variables, line_start(line), strict=True):
        variable.assign(value)
    line.fit(data, epochs=3, verbose=0)
    assert largest_difference(_weights(line), in_two) == 0


def line_start(loop: mk.train.Loop) -> list[np.ndarray]:
    """The values with which `line` starts: weights of seed 0, zeros elsewhere, and the learning rate."""
    keras.utils.set_random_seed(0)
    fresh = _line()
    rate = loop.step.optimizer.learning_rate.numpy()
    values = [np.zeros_like(value) for value in _weights(loop)]
    values[:2] = fresh.get_weights()
    place = next(i for i, v in enumerate(loop.step.variables) if v is loop.step.optimizer._learning_rate)
    values[place] = rate
    return values


def test_initial_epoch_continues_the_order_of_a_recipe(line: Any, recipe: Any) -> None:
    line.fit(recipe, epochs=1, verbose=0)
    report = line.fit(recipe, epochs=3, initial_epoch=1, verbose=0)
    in_two = _weights(line)
    assert len(report.history["loss"]) == 2
    for variable, value in zip(line.step.variables, line_start(line), strict=True):
        variable.assign(value)
    line.fit(recipe, epochs=3, verbose=0)
    assert largest_difference(_weights(line), in_two) == 0
    for variable, value in zip(line.step.variables, line_start(line), strict=True):
        variable.assign(value)
    line.fit(recipe, epochs=1, verbose=0)
    line.fit(recipe, epochs=2, verbose=0)  # epochs 0, 1 once more, so in another order
    assert largest_difference(_weights(line), in_two) > 0


def test_the_number_of_steps_per_call_changes_no_bit(line: Any, line_step: Any, recipe: Any) -> None:
    results = []
    for steps_per_call in (1, 7, "auto"):
        for variable, value in zip(line.step.variables, line_step[2], strict=True):
            variable.assign(value)
        loop = mk.train.Loop(line.strategy, line.step, steps_per_call=steps_per_call)
        history = loop.fit(recipe, epochs=3, validation_data=recipe, verbose=0).history
        results.append([*_weights(loop), *history.values()])
    assert largest_difference(results[0], results[1]) == 0
    assert largest_difference(results[0], results[2]) == 0
    assert int(line.step.optimizer.iterations.numpy()) == 15


def test_auto_makes_calls_of_about_half_a_second() -> None:
    from mirrorkit.train.calls import CallLength

    length = CallLength("auto")
    assert length.next(1000) == 1
    length.learn(1, 3.0)  # compiles
    probe = length.next(1000)
    length.learn(probe, 0.01 * probe)
    assert length.next(1000) == 50
    assert length.next(20) == 20
    assert length.next(None) == 50  # a call says itself how many steps it found data for
    slow = CallLength("auto")
    slow.learn(1, 9.0)
    slow.learn(slow.next(9), 30.0)
    assert slow.next(1000) == 1


def test_batch_hooks_come_once_per_call(line: Any, recipe: Any) -> None:
    seen: list[tuple[str, int]] = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(("begin", batch))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(("end", batch))
            assert set(logs) == {"loss", "mae"}

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(("test", batch))

    line.fit(recipe, validation_data=recipe, callbacks=[Record()], verbose=0)  # 5 steps, 2 in a call
    train = [("begin", 0), ("end", 1), ("begin", 2), ("end", 3), ("begin", 4), ("end", 4)]
    assert seen == [*train, ("test", 1), ("test", 3), ("test", 4)]


# --- data of every kind


def _slices(numbers: Any) -> tf.data.Dataset:
    return plain_dataset(*numbers, batch=12)


def _from_generator(numbers: Any) -> tf.data.Dataset:
    x, y = numbers

    def batches() -> Iterator[Any]:
        for i in range(0, 60, 12):
            yield x[i : i + 12], y[i : i + 12]

    signature = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


_DATA: dict[str, Callable[[Any], Any]] = {
    "recipe": lambda numbers: mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12),
    "known length": _slices,
    "static batches": lambda numbers: tf.data.Dataset.from_tensor_slices(numbers).batch(12, drop_remainder=True),
    "unknown length": lambda numbers: _slices(numbers).filter(lambda x, y: True),
    "generator": _from_generator,
    "cached": lambda numbers: _slices(numbers).cache().prefetch(1),
}


@pytest.mark.parametrize("kind", _DATA)
def test_any_dataset_trains_the_same(kind: str, line: Any, numbers: Any) -> None:
    start = _weights(line)
    line.fit(_DATA["known length"](numbers), epochs=2, verbose=0)
    expected = _weights(line)
    for variable, value in zip(line.step.variables, start, strict=True):
        variable.assign(value)
    report = line.fit(_DATA[kind](numbers), epochs=2, verbose=0)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(60, 5)] * 2
    assert largest_difference(_weights(line), expected) < 1e-6


def _losses_of(line: Any, numbers: Any, *batches: range) -> list[float]:
    """The mean squared error of the untouched `line` on each set of batches of 10."""
    weights = _weights(line)
    error = (_predict(weights, numbers[0]) - numbers[1]) ** 2
    return [float(np.mean([error[i * 10 : i * 10 + 10] for i in indices])) for indices in batches]


@pytest.mark.parametrize("finite", [False, True], ids=["endless", "finite"])
def test_steps_per_epoch_goes_on_through_the_data(finite: bool, line: Any, numbers: Any) -> None:
    """Six batches, four in an epoch: 0 1 2 3, then 4 5 0 1. With a learning rate of 0 the loss tells which."""
    line.step.optimizer.learning_rate = 0.0
    data = plain_dataset(*numbers, batch=10)
    report = line.fit(data if finite else data.repeat(), epochs=2, steps_per_epoch=4, verbose=0)
    expected = _losses_of(line, numbers, range(4), [4, 5, 0, 1])
    np.testing.assert_allclose(report.history["loss"], expected, rtol=1e-5)
    assert [epoch.steps for epoch in report.epochs] == [4, 4]


def test_endless_validation_data_starts_anew(line: Any, numbers: Any) -> None:
    line.step.optimizer.learning_rate = 0.0
    data = plain_dataset(*numbers, batch=10)
    history = line.fit(data, epochs=3, validation_data=data.repeat(), validation_steps=2, verbose=0).history
    np.testing.assert_allclose(history["val_loss"], _losses_of(line, numbers, range(2)) * 3, rtol=1e-5)


def test_a_users_shuffle_goes_on_from_epoch_to_epoch(line: Any, numbers: Any) -> None:
    """The order in which Loop sees a reshuffled dataset is the one that a plain `for` would see."""
    line.step.optimizer.learning_rate = 0.0

    def shuffled() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(numbers).shuffle(60, seed=5).batch(10).take(1)

    tf.random.set_seed(1)
    data, weights, expected = shuffled(), _weights(line), []
    for _ in range(3):
        for x, y in data:
            expected.append(np.mean((_predict(weights, x.numpy()) - y) ** 2))
    assert len(set(expected)) == 3
    tf.random.set_seed(1)
    history = line.fit(shuffled(), epochs=3, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)


# --- evaluate and predict


@pytest.fixture(scope="module")
def loops(strategy_of: Any) -> Callable[[tuple[str, int]], mk.train.Loop]:
    """`loops(where)`: a linear model with fixed weights, compiled once per strategy."""
    made: dict[Any, mk.train.Loop] = {}

    def get(where: tuple[str, int]) -> mk.train.Loop:
        if where not in made:
            strategy = strategy_of(*where)
            with strategy.scope():
                model, optimizer = _line(), keras.optimizers.SGD(0.1)
            model.set_weights([np.array([[1.0], [0.5], [-1.0], [2.0]]), np.array([0.25])])
            step = mk.train.Step(model, optimizer, loss="mse", metrics=["mae"])
            made[where] = mk.train.Loop(strategy, step, steps_per_call=3)
        return made[where]

    return get


@pytest.mark.parametrize("examples", [1, 37, 60])
@pytest.mark.parametrize("where", KINDS, ids=str)
def test_evaluate_counts_every_example_once(where: Any, examples: int, loops: Any, numbers: Any) -> None:
    loop = loops(where)
    x, y = (part[:examples] for part in numbers)
    error = _predict(loop.step.model.get_weights(), x) - y
    for data in (
        plain_dataset(x, y, batch=8),
        mk.data.batches(mk.data.arrays(x, y), global_batch_size=min(8, examples)),
    ):
        logs = loop.evaluate(data)
        assert list(logs) == ["loss", "mae"]
        np.testing.assert_allclose(logs["loss"], np.mean(error**2), rtol=1e-6)
        np.testing.assert_allclose(logs["mae"], np.mean(np.abs(error)), rtol=1e-6)


def test_small_losses_are_not_lost_beside_large_ones(loops: Any) -> None:
    """A running mean in float32 would lose the ones: 2**25 + 1 is not a float32."""
    loop = loops(("mirrored", 2))
    weights = loop.step.model.get_weights()
    y = np.array([4096.0] * 2 + [1.0] * 50, "float32")[:, None] + weights[1]
    logs = loop.evaluate(plain_dataset(np.zeros((52, 4), "float32"), y, batch=1))
    assert logs["loss"] == pytest.approx((2**25 + 50) / 52, rel=1e-9)


def test_evaluate_takes_the_steps_that_were_asked_for(loops: Any, numbers: Any) -> None:
    loop = loops(("mirrored", 2))
    error = _predict(loop.step.model.get_weights(), numbers[0][:20]) - numbers[1][:20]
    for data in (plain_dataset(*numbers, batch=10), plain_dataset(*numbers, batch=10).repeat()):
        for _ in range(2):
            np.testing.assert_allclose(loop.evaluate(data, steps=2)["loss"], np.mean(error**2), rtol=1e-6)


@pytest.mark.parametrize("examples", [1, 37])
@pytest.mark.parametrize("where", KINDS, ids=str)
def test_predict_keeps_the_order_and_pads_nothing(where: Any, examples: int, loops: Any, numbers: Any) -> None:
    loop = loops(where)
    x, y = (part[:examples] for part in numbers)
    expected = _predict(loop.step.model.get_weights(), x)
    for data in (tf.data.Dataset.from_tensor_slices(x).batch(8), plain_dataset(x, y, batch=8)):
        found = loop.predict(data)
        assert found.shape == (examples, 1)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert loop.predict(tf.data.Dataset.from_tensor_slices(x).batch(4).repeat(), steps=3).shape == (
        min(examples, 4) * 3,
        1,
    )


def test_predict_compiles_once(make_loop: Any, numbers: Any) -> None:
    traces = []

    class Count(L.Layer):
        def call(self, x: Any) -> Any:
            traces.append(x)
            return x

    loop = make_loop(("mirrored", 2), lambda: keras.Sequential([keras.Input((4,)), Count(), L.Dense(1)]))
    loop.predict(plain_dataset(*numbers, batch=30))
    first = len(traces)
    loop.predict(plain_dataset(*numbers, batch=30))
    assert len(traces) == first


# --- metrics


def _classifier(classes: int, activation: str) -> Callable[[], Any]:
    return lambda: keras.Sequential([keras.Input((4,)), L.Dense(classes, activation=activation)])


def _assert_metrics_equal(loop: Any, metrics: dict[str, Any], x: np.ndarray, y: np.ndarray) -> None:
    """Against Keras's own metric objects, updated on one device with everything at once."""
    logs = loop.evaluate(plain_dataset(x, y, batch=17))
    y_pred = loop.step.model.predict(x, verbose=0)
    for name, metric in metrics.items():
        metric.update_state(y, y_pred)
        np.testing.assert_allclose(logs[name], metric.result(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_multiclass_metrics_equal_keras_on_one_device(make_loop: Any, numbers: Any) -> None:
    def made() -> dict[str, Any]:
        m = keras.metrics
        return {
            "f1": m.F1Score(name="f1"),  # one value per class
            "macro": m.F1Score(average="macro", name="macro"),
            "top2": m.TopKCategoricalAccuracy(k=2, name="top2"),
            "iou": m.OneHotMeanIoU(num_classes=3, name="iou"),
            "auc": m.AUC(multi_label=True, num_labels=3, name="auc"),
            "kl": m.KLDivergence(name="kl"),
            "cosine": m.CosineSimilarity(name="cosine"),
        }

    x = numbers[0]
    y = np.eye(3, dtype="float32")[np.digitize(numbers[1][:, 0], [-1.0, 4.0])]
    loss = "categorical_crossentropy"
    loop = make_loop(("mirrored", 4), _classifier(3, "softmax"), loss=loss, metrics=list(made().values()))
    _assert_metrics_equal(loop, made(), x, y)
    history = loop.fit(plain_dataset(x, y, batch=17), epochs=2, verbose=0).history
    assert [np.shape(value) for value in history["f1"]] == [(3,), (3,)]


def test_binary_metrics_equal_keras_on_one_device(make_loop: Any, numbers: Any, strategy_of: Any) -> None:
    def made() -> dict[str, Any]:
        m = keras.metrics
        return {
            "auc": m.AUC(name="auc"),
            "precision": m.Precision(name="precision"),
            "recall": m.Recall(name="recall"),
            "iou": m.BinaryIoU(name="iou"),
            "mean_iou": m.MeanIoU(num_classes=2, name="mean_iou"),
            "at": m.SensitivityAtSpecificity(0.5, name="at"),
            "rmse": m.RootMeanSquaredError(name="rmse"),
            "r2": m.R2Score(name="r2"),
        }

    y = (numbers[1] > 0).astype("float32")
    with strategy_of("mirrored", 2).scope():  # where users of tf.distribute make their metrics
        in_scope = list(made().values())
    loop = make_loop(
        ("mirrored", 2), _classifier(1, "sigmoid"), loss="binary_crossentropy", metrics=["accuracy", *in_scope]
    )
    expected = {"accuracy": keras.metrics.BinaryAccuracy(), **made()}
    _assert_metrics_equal(loop, expected, numbers[0], y)


@pytest.mark.parametrize(
    ("classes", "y", "kind"),
    [
        (3, np.arange(60) % 3, "sparse_categorical"),
        (3, (np.arange(60) % 3)[:, None], "sparse_categorical"),
        (3, np.eye(3, dtype="float32")[np.arange(60) % 3], "categorical"),
        (1, (np.arange(60) % 2)[:, None].astype("float32"), "binary"),
        (1, np.arange(60) % 2, "binary"),
    ],
    ids=["sparse", "sparse column", "one-hot", "binary", "binary flat"],
)
def test_accuracy_and_crossentropy_mean_what_keras_means(
    classes: int, y: np.ndarray, kind: str, make_loop: Any, numbers: Any
) -> None:
    net = _classifier(classes, "sigmoid" if classes == 1 else "softmax")
    loop = make_loop(("one_device", 1), net, loss="crossentropy", metrics=["accuracy", "acc"])
    logs = loop.evaluate(plain_dataset(numbers[0], y, batch=60))
    y_pred = loop.step.model(numbers[0]).numpy()
    accuracy = keras.metrics.get(f"{kind}_accuracy")
    accuracy.update_state(y, y_pred)
    loss = keras.losses.get(f"{kind}_crossentropy")
    expected = np.mean(loss(np.reshape(y, (60, -1)).astype("float32") if kind == "binary" else y, y_pred))
    assert logs["accuracy"] == logs["acc"] == pytest.approx(float(accuracy.result()))
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_function_is_a_metric(line: Any, make_loop: Any, numbers: Any) -> None:
    def squared(y: Any, y_pred: Any) -> Any:
        return keras.ops.square(y - y_pred)

    loop = make_loop(("mirrored", 2), _line, metrics=[squared, "mse"])
    logs = loop.evaluate(plain_dataset(*numbers, batch=17))
    assert logs["squared"] == pytest.approx(logs["mse"]) == pytest.approx(logs["loss"])


def test_a_metric_that_does_not_add_up_is_refused_by_name(make_loop: Any, recipe: Any) -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest_error")
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y - y_pred))))

        def result(self) -> Any:
            return self.largest

    loop = make_loop(("mirrored", 2), _line, metrics=[Largest()])
    for call in (loop.fit, loop.evaluate, loop.warm_up):
        with pytest.raises(StepError, match=r"'largest_error' \(Largest\) does not add up.*predict"):
            call(recipe)


# --- what stops a run


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_loss_names_its_step(where: Any, bad: float, loops: Any, numbers: Any) -> None:
    loop = loops(where)
    start = _weights(loop)
    x = numbers[0].copy()
    x[37] = bad  # batch 3 of 10
    done = loop._steps_done
    try:
        with pytest.raises(NonFiniteLossError, match=r"\(epoch 2, batch 3 of it.*clip_norm") as error:
            loop.fit(
                plain_dataset(x, numbers[1], batch=10),
                epochs=4,
                initial_epoch=2,
                verbose=0,
                callbacks=[keras.callbacks.TerminateOnNaN()],
            )
        assert error.value.step == done + 3
        assert f"training step {done + 3} " in str(error.value)
        assert isinstance(error.value, ArithmeticError)
    finally:
        for variable, value in zip(loop.step.variables, start, strict=True):
            variable.assign(value)


def test_the_step_of_a_bad_loss_counts_the_whole_run(line: Any, numbers: Any, recipe: Any) -> None:
    loop = mk.train.Loop(line.strategy, line.step, steps_per_call=4)
    loop.fit(recipe, epochs=2, verbose=0)
    y = numbers[1].copy()
    y[0] = np.nan
    with pytest.raises(NonFiniteLossError) as error:
        loop.fit(plain_dataset(numbers[0], y, batch=12), verbose=0)
    assert error.value.step == 10


def test_an_error_in_the_data_reaches_the_user(line: Any, numbers: Any) -> None:
    def broken() -> Iterator[Any]:
        yield numbers[0][:12], numbers[1][:12]
        raise OSError("the disk is gone")

    spec = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    with pytest.raises(Exception, match="the disk is gone"):
        line.fit(tf.data.Dataset.from_generator(broken, output_signature=spec), verbose=0)


def test_an_error_on_one_replica_ends_the_step(make_loop: Any, numbers: Any) -> None:
    """A label outside the classes, in the last replica's share: an error, not a hang."""
    y = np.zeros(60, "int64")
    y[-1] = 7
    loop = make_loop(("mirrored", 4), _classifier(3, "softmax"), loss="sparse_categorical_crossentropy")
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value of 7"):
        loop.fit(plain_dataset(numbers[0], y, batch=60), verbose=0)


# --- tracing


def test_nothing_is_traced_twice(make_loop: Any, numbers: Any) -> None:
    """Epochs, calls, validation and a partial last batch: one trace each; and the model once, not once per replica."""
    traces: list[bool] = []

    class Count(L.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            traces.append(training)
            return x

    loop = make_loop(
        ("mirrored", 4), lambda: keras.Sequential([keras.Input((4,)), Count(), L.Dense(1)]), steps_per_call=2
    )
    recipe = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=16, shuffle=True)  # the last one has 12
    traces.clear()
    loop.fit(recipe, epochs=3, validation_data=recipe, verbose=0)
    assert traces.count(True) == 1
    calls = loop._calls
    assert [f.experimental_get_tracing_count() for f in (calls._train, calls._test)] == [1, 1]
    before = len(traces)
    loop.fit(recipe, epochs=2, validation_data=recipe, verbose=0)
    loop.evaluate(recipe)
    assert len(traces) == before
    assert [f.experimental_get_tracing_count() for f in (calls._train, calls._test)] == [1, 1]
