"""Metrics of every kind equal Keras's own on one device; those that do not add up are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import classifier, line_net, plain_dataset

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


# --- metrics


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
            "cosine": m.CosineSimilarity(name="cosine"),
        }

    x = numbers[0]
    y = np.eye(3, dtype="float32")[np.digitize(numbers[1][:, 0], [-1.0, 4.0])]
    loss = "categorical_crossentropy"
    loop = make_loop(("mirrored", 2), lambda: classifier(3, "softmax"), loss=loss, metrics=list(made().values()))
    _assert_metrics_equal(loop, made(), x, y)  # in a training, one with a value per class: checkpoints/test_resume.py


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
        ("mirrored", 2), lambda: classifier(1, "sigmoid"), loss="binary_crossentropy", metrics=["accuracy", *in_scope]
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
    activation = "sigmoid" if classes == 1 else "softmax"
    options = {"loss": "crossentropy", "metrics": ["accuracy", "acc"]}
    loop = make_loop(("one_device", 1), lambda: classifier(classes, activation), **options)
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

    loop = make_loop(("mirrored", 2), line_net, metrics=[squared, "mse"])
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

    loop = make_loop(("mirrored", 2), line_net, metrics=[Largest()])
    for call in (loop.fit, loop.evaluate, loop.warm_up):
        with pytest.raises(StepError, match=r"'largest_error' \(Largest\) does not add up.*predict"):
            call(recipe)
