"""The check of the first batch is silent where the parts of a batch add up."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import BINARY, CLASSES, ONE_HOT, POSITIVE, TWO, X, binary_net, check, class_net, rng, token_net
from installed_versions import KERAS, needs_keras
from step_helpers import with_policy
from training_helpers import line_net, sequential

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
M = keras.metrics
ops = keras.ops
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model")


LIKE_OTHERS = {"resnet32", "resnet56", "wide_resnet", "cifar_cnn", "speed_net", "mlp"}  # as resnet20 and mnist_cnn


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in mk.models.names() if hasattr(mk.models, n) and n not in LIKE_OTHERS])
def test_silent_on_the_zoo(name: str, make_loop: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = make_loop(TWO, lambda: mk.models.create(name), loss=loss, metrics=["accuracy"])
    shape = loop.step.model.input_shape[1:]
    check(loop, rng.integers(0, 256, (24, *shape)).astype("uint8"), rng.integers(0, 10, 24))


LOSSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # net, targets, arguments
    **dict.fromkeys(
        ["BinaryCrossentropy", "BinaryFocalCrossentropy", "Hinge", "SquaredHinge"], (binary_net, BINARY, {})
    ),
    **dict.fromkeys(
        [
            "CategoricalCrossentropy",
            "CategoricalFocalCrossentropy",
            "CategoricalHinge",
            "KLDivergence",
            "CosineSimilarity",
        ],
        (class_net, ONE_HOT, {}),
    ),
    **dict.fromkeys(["Dice", "Tversky"], (class_net, ONE_HOT, {"axis": (1,)})),
    **{
        name: (class_net, CLASSES, {})
        for name in (
            *("SparseCategoricalCrossentropy", "CategoricalGeneralizedCrossEntropy"),
            "SparseCategoricalFocalCrossentropy",
        )
        if hasattr(keras.losses, name)  # the last from Keras 3.16 on
    },
    **dict.fromkeys(
        ["Huber", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"],
        (line_net, X[:, :1], {}),
    ),
    **dict.fromkeys(["Poisson", "MeanSquaredLogarithmicError"], (binary_net, POSITIVE, {})),
    "CTC": (token_net, rng.integers(1, 5, (24, 3)), {}),
}


def test_every_loss_of_keras_is_checked() -> None:
    made = {name for name, cls in vars(keras.losses).items() if inspect.isclass(cls)}
    assert made - {"Loss", "Circle"} == set(LOSSES)  # Circle compares the rows: below


OF_CLASSES: dict[str, tuple[Any, Any]] = {
    "label_smoothing": (keras.losses.CategoricalCrossentropy(label_smoothing=0.1), ONE_HOT),
    "mean_with_weight": (keras.losses.CategoricalCrossentropy(reduction="mean_with_sample_weight"), ONE_HOT),
    "ignore_class": (keras.losses.SparseCategoricalCrossentropy(ignore_class=1), CLASSES),
}


@pytest.mark.slow
def test_silent_on_losses_of_keras(make_loop: Any) -> None:
    """Each of an output of its own, and what they take."""
    losses, targets, last = {}, {}, {}
    for name, (net, y, options) in LOSSES.items():
        if net is not token_net:
            losses[name], targets[name] = getattr(keras.losses, name)(**options), y
            last[name] = net().layers[-1]
    for name, (loss, y) in OF_CLASSES.items():
        losses[name], targets[name], last[name] = loss, y, class_net().layers[-1]

    def net() -> Any:
        inputs = keras.Input((4,))
        configs = {name: {**layer.get_config(), "name": name} for name, layer in last.items()}
        return keras.Model(inputs, {name: L.Dense.from_config(config)(inputs) for name, config in configs.items()})

    weights = {name: rng.uniform(0, 2, 24).astype("float32") for name in losses}
    check(make_loop(TWO, net, loss=losses), X, targets, weights)


def test_silent_on_a_dice_loss_over_a_batch_of_classes(make_loop: Any) -> None:
    """Of targets and outputs that add up to 1 for each row it is a mean over the rows, but not of rows of zeros."""
    check(make_loop(TWO, class_net, loss=keras.losses.Dice()), X, ONE_HOT)


@pytest.mark.slow  # it takes long to trace
def test_silent_on_a_loss_of_sequences(make_loop: Any) -> None:
    net, y, _ = LOSSES["CTC"]
    x = rng.normal(size=(24, 9, 4)).astype("float32")
    check(make_loop(TWO, net, loss=keras.losses.CTC()), x, y, rng.uniform(0, 2, 24).astype("float32"))


METRICS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "confusion": (
        binary_net,
        BINARY,
        (
            *(M.AUC(), M.FalseNegatives(), M.FalsePositives(), M.TrueNegatives(), M.TruePositives()),
            *(M.Precision(), M.Recall(), M.PrecisionAtRecall(0.5), M.RecallAtPrecision(0.5)),
            *(M.SensitivityAtSpecificity(0.5), M.SpecificityAtSensitivity(0.5)),
        ),
    ),
    "binary": (
        binary_net,
        BINARY,
        (
            *(M.BinaryAccuracy(), M.Hinge(), M.SquaredHinge(), M.BinaryIoU(), M.BinaryCrossentropy()),
            M.F1Score(average="micro", threshold=0.5),
        ),
    ),
    "one-hot": (
        class_net,
        ONE_HOT,
        (
            *(M.CategoricalAccuracy(), M.TopKCategoricalAccuracy(k=2), M.F1Score(), M.FBetaScore()),
            *(M.CategoricalHinge(), M.OneHotIoU(3, [0, 1]), M.OneHotMeanIoU(3), M.CategoricalCrossentropy()),
            *(M.KLDivergence(), M.CosineSimilarity(), M.ConcordanceCorrelation(), M.PearsonCorrelation()),
        ),
    ),
    "classes": (
        class_net,
        CLASSES,
        (
            *(M.SparseCategoricalAccuracy(), M.SparseTopKCategoricalAccuracy(k=2), M.SparseCategoricalCrossentropy()),
            *(M.MeanIoU(3, sparse_y_pred=False), M.IoU(3, [0, 2], sparse_y_pred=False)),
        ),
    ),
    "numbers": (
        line_net,
        X[:, :1],
        (
            *(M.Accuracy(), M.LogCoshError(), M.MeanAbsoluteError(), M.MeanAbsolutePercentageError()),
            *(M.MeanSquaredError(), M.R2Score(), M.RootMeanSquaredError()),
        ),
    ),
    "counts": (binary_net, POSITIVE, (M.Poisson(), M.MeanSquaredLogarithmicError())),
}


def test_every_metric_of_keras_is_checked() -> None:
    made = {name for name, cls in vars(M).items() if inspect.isclass(cls)}
    checked = {type(metric).__name__ for _, _, metrics in METRICS.values() for metric in metrics}
    assert made - {"Metric", "Mean", "MeanMetricWrapper", "Sum"} == checked


RARE = ("binary", "counts")  # the same kinds of states as others have


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in RARE)) for k in METRICS])
def test_silent_on_metrics_of_keras(kind: str, make_loop: Any) -> None:
    """With the weights of examples and without."""
    net, y, metrics = METRICS[kind]
    plain, weighted = ([type(m).from_config(m.get_config()) for m in metrics] for _ in range(2))
    loss = "sparse_categorical_crossentropy" if y is CLASSES else "mse"
    loop = make_loop(TWO, net, loss=loss, metrics=plain, weighted_metrics=weighted)
    check(loop, X, y, rng.uniform(0, 2, 24).astype("float32"))


def test_silent_on_what_is_known_to_depend_on_the_cut(make_loop: Any) -> None:
    def net() -> Any:
        layers = [L.Dense(8), L.BatchNormalization(), L.ReLU(), L.Dropout(0.5), L.GaussianNoise(0.3), L.Dense(1)]
        return sequential((4,), *layers)

    check(make_loop(TWO, net, metrics=["mae"]), X, X[:, :1])


@pytest.mark.slow
def test_silent_on_regularisers_masks_and_several_outputs(make_loop: Any) -> None:
    def net() -> Any:
        inputs = {"tokens": keras.Input((6,), dtype="int32", name="tokens"), "x": keras.Input((4,), name="x")}
        read = L.LSTM(4, return_sequences=True)(L.Embedding(5, 4, mask_zero=True)(inputs["tokens"]))
        regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l2" if KERAS >= (3, 14) else None}
        tags = L.Dense(3, **regularizers, activation="softmax", name="tags")(read)
        mood = L.Dense(1, bias_regularizer="l1", name="mood")(L.concatenate([inputs["x"], read[:, -1]]))
        return keras.Model(inputs, {"tags": tags, "mood": mood})

    tokens = rng.integers(0, 5, (24, 6)).astype("int32")
    y = {"tags": rng.integers(0, 3, (24, 6)), "mood": X[:, :1]}
    options = {"loss": {"tags": "sparse_categorical_crossentropy", "mood": "mse"}, "metrics": {"tags": ["accuracy"]}}
    loop = make_loop(TWO, net, **options)
    check(loop, {"tokens": tokens, "x": X}, y, {"tags": rng.uniform(size=(24, 6)), "mood": rng.uniform(size=24)})


LOW_PRECISION = ("mixed_bfloat16", "mixed_float16")


@pytest.mark.slow
@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_silent_in_low_precision(policy: str, make_loop: Any) -> None:
    def net() -> Any:
        with with_policy(policy):
            return sequential((4,), *[L.Dense(32, activation="relu") for _ in range(6)], L.Dense(1, dtype="float32"))

    check(make_loop(TWO, net, metrics=["mae"], loss_scale=8.0), X, X[:, :1])


@needs_keras((3, 14), "an activity regulariser that is a mean over the rows")
def test_silent_on_activity_regularisers(make_loop: Any) -> None:
    """In 16 bits Keras 3.15 fails: its sum of a loss in float32 and one in float16."""

    def net() -> Any:
        hidden = L.Dense(64, activation="relu", activity_regularizer="l2")
        return sequential((4,), hidden, L.ActivityRegularization(0.1), L.Dense(1))

    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=(24, 4)).astype("float32")
        check(make_loop(TWO, net, loss_scale=8.0), x, x[:, :1])


@pytest.mark.slow
def test_silent_on_losses_of_noise(make_loop: Any) -> None:
    class Sampled(L.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x: Any) -> Any:
            z = x + keras.random.normal(ops.shape(x), seed=self.seeds)
            self.add_loss(ops.mean(ops.sum(0.5 * z**2 - 0.5 * (z - x) ** 2, -1)))
            return z

    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(24, 4)).astype("float32")
        check(make_loop(TWO, lambda: sequential((4,), L.Dense(4), Sampled(), L.Dense(1))), x, x[:, :1])
