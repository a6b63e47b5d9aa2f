"""The check of the first batch is silent where the parts of a batch add up."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from first_batch_helpers import BINARY, CLASSES, ONE_HOT, POSITIVE, TWO, X, binary_net, check, class_net, rng, token_net
from training_helpers import line_net

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
