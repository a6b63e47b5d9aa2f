"""Metrics of every kind equal Keras's own on one device; those that do not add up are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import needs_keras
from training_helpers import assert_same_logs, classifier, keras_twin, line_net, plain_dataset

from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers


def _assert_metrics_equal(make_loop: Any, last: Any, loss: str, make: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Against Keras's own metric objects, updated on one device with everything at once."""
    loop = make_loop(("mirrored", 2), lambda: classifier(*last), loss=loss, metrics=list(make().values()))
    logs = loop.evaluate(plain_dataset(x, y, batch=15))  # 8 and 7 rows for the replicas
    y_pred = loop.step.model.predict(x, verbose=0)
    for name, metric in make().items():
        metric.update_state(y, y_pred)
        np.testing.assert_allclose(logs[name], metric.result(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_binary_metrics_equal_keras_on_one_device(make_loop: Any, numbers: Any, strategy_of: Any) -> None:
    def make() -> dict[str, Any]:
        m = keras.metrics
        with strategy_of("mirrored", 2).scope():  # where users of tf.distribute make their metrics
            return {
                "precision": m.Precision(name="precision"),
                "mean_iou": m.MeanIoU(num_classes=2, name="mean_iou"),
                "at": m.SensitivityAtSpecificity(0.5, name="at"),
                "rmse": m.RootMeanSquaredError(name="rmse"),
                "r2": m.R2Score(name="r2"),
            }

    y = (numbers[1] > 0).astype("float32")
    _assert_metrics_equal(make_loop, (1, "sigmoid"), "binary_crossentropy", make, numbers[0], y)


@needs_keras((3, 14), "metrics of outputs that share a layer")
def test_accuracy_and_crossentropy_mean_what_keras_means(make_loop: Any, numbers: Any) -> None:
    """For each output by its own shape and by that of its targets."""
    classes, halves = np.arange(60) % 3, np.arange(60) % 2
    targets = {  # and which accuracy and crossentropy of Keras are meant
        "sparse": (classes, "sparse_categorical"),
        "column": (classes[:, None], "sparse_categorical"),
        "onehot": (np.eye(3, dtype="float32")[classes], "categorical"),
        "binary": (halves[:, None].astype("float32"), "binary"),
        "flat": (halves, "binary"),
    }

    def net() -> Any:
        x = keras.Input((4,))
        many, one = L.Dense(3, "softmax")(x), L.Dense(1, "sigmoid")(x)
        return keras.Model(x, {name: one if kind == "binary" else many for name, (_, kind) in targets.items()})

    metrics = {name: ["accuracy", "acc"] for name in targets}
    loop = make_loop(("one_device", 1), net, loss="crossentropy", metrics=metrics)
    data = tf.data.Dataset.from_tensor_slices((numbers[0], {name: y for name, (y, _) in targets.items()})).batch(60)
    logs, outputs = loop.evaluate(data), loop.step.model(numbers[0])
    for name, (y, kind) in targets.items():
        y_pred = outputs[name].numpy()
        accuracy = keras.metrics.get(f"{kind}_accuracy")
        accuracy.update_state(y, y_pred)
        loss = keras.losses.get(f"{kind}_crossentropy")
        expected = np.mean(loss(np.reshape(y, (60, -1)).astype("float32") if kind == "binary" else y, y_pred))
        assert logs[f"{name}_accuracy"] == logs[f"{name}_acc"] == pytest.approx(float(accuracy.result())), name
        assert logs[f"{name}_loss"] == pytest.approx(expected, rel=1e-5), name


class Rows(keras.metrics.Metric):
    """Its result is its variable, as in Keras's guide to custom metrics, or holds it."""

    def __init__(self, name: str, *, in_dict: bool = False) -> None:
        super().__init__(name=name)
        self.in_dict = in_dict
        self.rows = self.add_variable(shape=(), initializer="zeros", name="rows")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(y)[0], "float32"))

    def result(self) -> Any:
        return {"held": self.rows} if self.in_dict else self.rows


@pytest.mark.slow
def test_a_result_may_be_a_variable(make_loop: Any, numbers: Any) -> None:
    metrics = [Rows("rows"), Rows("dict", in_dict=True)]
    loop = make_loop(("mirrored", 2), line_net, loss="mse", metrics=metrics)
    data = plain_dataset(*numbers, batch=15)
    history = loop.fit(data, validation_data=data, verbose=0).history
    for name in ("rows", "held", "val_rows", "val_held"):
        assert history[name] == [60.0]


def test_an_output_may_be_a_variable(make_loop: Any) -> None:
    class Bias(L.Layer):  # type: ignore[name-defined, misc]
        def build(self, shape: Any) -> None:
            self.bias = self.add_weight(shape=(4, 1), initializer="ones")

        def call(self, x: Any) -> Any:
            return self.bias

    class Net(keras.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.bias = Bias()

        def call(self, x: Any) -> Any:
            return self.bias(x)

    loop = make_loop(("one_device", 1), Net)
    loop.fit(plain_dataset(np.ones([4, 2], np.float32), np.zeros([4, 1], np.float32), batch=4), verbose=0)
    np.testing.assert_allclose(loop.step.model.bias.bias, np.full([4, 1], 1 - 0.1 * 2 / 4), rtol=1e-6)


@pytest.mark.slow
def test_a_function_is_a_metric_by_the_name_that_keras_gives_it(make_loop: Any, numbers: Any) -> None:
    def squared(name: str) -> Any:
        def error(y: Any, y_pred: Any) -> Any:
            return keras.ops.square(y - y_pred)

        error.__name__ = name
        return error

    metrics = ["mse", *map(squared, ("<lambda>", "MeanError", "RMSE"))]
    model = line_net()
    model.compile(loss="mse", metrics=metrics)
    of_keras = model.evaluate(*numbers, verbose=0, return_dict=True)
    logs = make_loop(("mirrored", 2), line_net, metrics=metrics).evaluate(plain_dataset(*numbers, batch=15))
    assert set(logs) == set(of_keras)
    assert list(logs.values()) == [pytest.approx(logs["loss"])] * len(logs)


def test_a_metric_that_does_not_add_up_is_refused_by_name(make_loop: Any, recipe: Any) -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest_error")
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y - y_pred))))

        def result(self) -> Any:
            return self.largest

    loop = make_loop(("mirrored", 2), line_net, metrics=[Largest()])
    for call in (loop.fit, loop.evaluate, loop.warm_up):
        with pytest.raises(StepError, match="more to 'largest_error/largest' than to add"):
            call(recipe)


# --- metrics of several numbers


@keras.saving.register_keras_serializable("mirrorkit_tests")
class Rates(keras.metrics.Metric):  # type: ignore[name-defined, misc]
    """Several numbers by name, one of them in a dict in the dict; or as a tuple."""

    def __init__(self, name: str = "rates", keys: tuple[str, ...] = ("p", "r"), **options: Any) -> None:
        super().__init__(name=name, **options)
        self.keys = keys
        self.error = self.add_weight(name="error", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = tf.abs(y_true - y_pred)[:, 0]
        weight = tf.ones_like(error) if sample_weight is None else tf.cast(tf.reshape(sample_weight, [-1]), error.dtype)
        self.error.assign_add(tf.reduce_sum(error * weight))
        self.count.assign_add(tf.reduce_sum(weight))

    def result(self) -> Any:
        mean = self.error / self.count
        if not self.keys:
            return mean, 2 * mean
        first, *others = self.keys
        return {first: mean, "more": {key: mean * (i + 2) for i, key in enumerate(others)}}


def _assert_as_in_keras(make_loop: Any, net: Any, batches: Any, **compiled: Any) -> None:
    """The same names and values of fit, with validation."""

    def made() -> dict[str, Any]:
        return {"loss": "mse", **{name: make() for name, make in compiled.items()}}

    loop = make_loop(("mirrored", 2), net, lambda: keras.optimizers.SGD(0.01), **made())
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.01), **made())
    expected, found = (one.fit(batches, validation_data=batches, verbose=0).history for one in (model, loop))
    assert_same_logs(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_metric_of_several_numbers_gives_the_names_of_keras(make_loop: Any, numbers: Any) -> None:
    weights = np.linspace(0.5, 1.5, 60, dtype="float32")
    compiled = {
        "metrics": lambda: ["mae", Rates(), "mae", Rates("pair", keys=())],
        "weighted_metrics": lambda: ["mae", Rates(keys=("wp", "wr"))],
    }
    _assert_as_in_keras(make_loop, line_net, plain_dataset(*numbers, weights, batch=20), **compiled)


class Hits(keras.metrics.Metric):
    """Counts on Keras's argmax of int32, which Keras's own accuracies have as int64 in a step."""

    def __init__(self) -> None:
        super().__init__(name="hits")
        self.hits = self.add_variable(shape=(), initializer="zeros", name="hits")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        same = keras.ops.argmax(y_pred, -1) == keras.ops.cast(keras.ops.reshape(y, [-1]), "int32")
        self.hits.assign_add(keras.ops.sum(keras.ops.cast(same, "float32")))

    def result(self) -> Any:
        return self.hits + 0.0


@pytest.mark.slow
def test_a_metric_of_the_users_own_counts_on_int32(make_loop: Any, numbers: Any) -> None:
    classes = (numbers[0], np.arange(60) % 3)
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy", Hits()]}
    loop = make_loop(("mirrored", 2), lambda: classifier(3, "softmax"), **options)
    logs = loop.evaluate(plain_dataset(*classes, batch=20))
    assert logs["hits"] == pytest.approx(60 * logs["accuracy"])


class Ratio(keras.Model):  # type: ignore[name-defined, misc]
    """Logs no loss, and a metric that is 0 / 0 in a batch without positives."""

    @property
    def metrics(self) -> Any:
        return [self.hits]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean((y_pred - y) ** 2)
        self.hits.update_state(y, y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"hits": self.hits.result()}


class Share(keras.metrics.Metric):  # type: ignore[name-defined, misc]
    """The share of positives that are found."""

    def __init__(self) -> None:
        super().__init__(name="hits")
        self.found, self.all = (self.add_variable((), "zeros", name=name) for name in ("found", "all"))

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        positive = tf.cast(y > 0, tf.float32)
        self.found.assign_add(tf.reduce_sum(positive * tf.cast(y_pred > 0, tf.float32)))
        self.all.assign_add(tf.reduce_sum(positive))

    def result(self) -> Any:
        return self.found / self.all


def test_a_metric_without_a_value_in_a_batch_does_not_end_the_training(loop_over: Any) -> None:
    def make() -> Any:
        inputs = keras.Input((4,))
        model = Ratio(inputs, L.Dense(1)(inputs))
        model.hits = Share()
        model.compile("sgd")
        return model

    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    y = np.repeat([[-1.0], [1.0]], 8, axis=0).astype("float32")  # the first batch has no positive
    loop = loop_over(make, ("one_device", 1), unchecked=["rows"])
    assert np.isfinite(loop.fit(plain_dataset(x, y, batch=8), verbose=0).history["hits"][0])
    with pytest.raises(NonFiniteLossError):
        loop.fit(plain_dataset(x, np.full_like(y, np.inf), batch=8), verbose=0)


class Decayed(Share):
    """Halves its sums before it adds to them."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.found.assign(0.5 * self.found + tf.reduce_sum(tf.abs(y - y_pred)))
        self.all.assign(0.5 * self.all + tf.cast(tf.size(y), tf.float32))


class Largest(Share):
    """The largest error."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.found.assign(tf.maximum(self.found, tf.reduce_max(tf.abs(y - y_pred))))
        self.all.assign_add(0.0)

    def result(self) -> Any:
        return self.found


class Resets(keras.Model):  # type: ignore[name-defined, misc]
    """Logs the metrics of each batch by itself."""

    def train_step(self, data: Any) -> Any:
        self.reset_metrics()
        return super().train_step(data)


@pytest.mark.parametrize(
    ("kind", "metric"), [(keras.Model, Decayed), (keras.Model, Largest), (Resets, keras.metrics.MeanAbsoluteError)]
)
def test_metrics_that_are_not_added_to_are_refused(kind: Any, metric: Any, loop_over: Any, numbers: Any) -> None:
    def make() -> Any:
        inputs = keras.Input((4,))
        model = kind(inputs, L.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=[metric()])
        return model

    with pytest.raises(StepError, match=r"leaves '.*' at .* after all rows"):
        loop_over(make).fit(plain_dataset(*numbers, batch=20), verbose=0)
