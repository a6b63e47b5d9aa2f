"""The check of the first batch: silent where parts of a batch add up, and red by name where they do not."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import classifier, largest_difference, line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
ops = keras.ops
TWO = ("mirrored", 2)
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model")

rng = np.random.default_rng(0)
X = rng.normal(size=(24, 4)).astype("float32")
BINARY = (X[:, :1] > 0).astype("float32")
CLASSES = np.arange(24) % 3
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
POSITIVE = np.abs(X[:, 1:2]) + 0.5


def _check(loop: Any, *batch: Any) -> None:
    """What `fit` does before its first step."""
    check_batch = loop.step.for_loop(loop.strategy).first_batch_check()
    assert check_batch is not None
    check_batch(tf.nest.map_structure(tf.constant, batch))


def _binary() -> Any:
    return sequential((4,), L.Dense(1, activation="sigmoid"))


def _shares() -> Any:
    return classifier(3, "softmax")


def _tokens() -> Any:
    return sequential((None, 4), L.Dense(5))


# --- silent


LARGE = {"resnet32", "resnet56", "wide_resnet"}  # as resnet20, with more of the same


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in mk.models.names() if hasattr(mk.models, n)],
)
def test_silent_on_the_zoo(name: str, make_loop: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = make_loop(TWO, lambda: mk.models.create(name), loss=loss, metrics=["accuracy"])
    shape = loop.step.model.input_shape[1:]
    _check(loop, rng.integers(0, 256, (24, *shape)).astype("uint8"), rng.integers(0, 10, 24))


LOSSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # net, targets, arguments
    **dict.fromkeys(["BinaryCrossentropy", "BinaryFocalCrossentropy", "Hinge", "SquaredHinge"], (_binary, BINARY, {})),
    **dict.fromkeys(
        [
            "CategoricalCrossentropy",
            "CategoricalFocalCrossentropy",
            "CategoricalHinge",
            "KLDivergence",
            "CosineSimilarity",
        ],
        (_shares, ONE_HOT, {}),
    ),
    **dict.fromkeys(["Dice", "Tversky"], (_shares, ONE_HOT, {"axis": (1,)})),
    **dict.fromkeys(["SparseCategoricalCrossentropy", "CategoricalGeneralizedCrossEntropy"], (_shares, CLASSES, {})),
    **dict.fromkeys(
        ["Huber", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"],
        (line_net, X[:, :1], {}),
    ),
    **dict.fromkeys(["Poisson", "MeanSquaredLogarithmicError"], (_binary, POSITIVE, {})),
    "CTC": (_tokens, rng.integers(1, 5, (24, 3)), {}),
}


def test_every_loss_of_keras_is_checked() -> None:
    made = {name for name, cls in vars(keras.losses).items() if inspect.isclass(cls)}
    assert made - {"Loss", "Circle"} == set(LOSSES)  # Circle compares the rows: below


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_silent_on_losses_of_keras(name: str, weighted: bool, make_loop: Any) -> None:
    net, y, options = LOSSES[name]
    x = rng.normal(size=(24, 9, 4)).astype("float32") if net is _tokens else X
    weight = [rng.uniform(0, 2, 24).astype("float32")] if weighted else []
    _check(make_loop(TWO, net, loss=getattr(keras.losses, name)(**options)), x, y, *weight)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (keras.losses.CategoricalCrossentropy(label_smoothing=0.1), ONE_HOT),
        (keras.losses.CategoricalCrossentropy(reduction="mean_with_sample_weight"), ONE_HOT),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=1), CLASSES),
    ],
    ids=["label smoothing", "mean_with_sample_weight", "ignore_class"],
)
def test_silent_on_what_losses_take(loss: Any, y: Any, make_loop: Any) -> None:
    _check(make_loop(TWO, _shares, loss=loss), X, y, rng.uniform(0, 2, 24).astype("float32"))


M = keras.metrics
METRICS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "confusion": (
        _binary,
        BINARY,
        (
            *(M.AUC(), M.FalseNegatives(), M.FalsePositives(), M.TrueNegatives(), M.TruePositives()),
            *(M.Precision(), M.Recall(), M.PrecisionAtRecall(0.5), M.RecallAtPrecision(0.5)),
            *(M.SensitivityAtSpecificity(0.5), M.SpecificityAtSensitivity(0.5)),
        ),
    ),
    "binary": (
        _binary,
        BINARY,
        (
            *(M.BinaryAccuracy(), M.Hinge(), M.SquaredHinge(), M.BinaryIoU(), M.BinaryCrossentropy()),
            M.F1Score(average="micro", threshold=0.5),
        ),
    ),
    "one-hot": (
        _shares,
        ONE_HOT,
        (
            *(M.CategoricalAccuracy(), M.TopKCategoricalAccuracy(k=2), M.F1Score(), M.FBetaScore()),
            *(M.CategoricalHinge(), M.OneHotIoU(3, [0, 1]), M.OneHotMeanIoU(3), M.CategoricalCrossentropy()),
            *(M.KLDivergence(), M.CosineSimilarity(), M.ConcordanceCorrelation(), M.PearsonCorrelation()),
        ),
    ),
    "classes": (
        _shares,
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
    "counts": (_binary, POSITIVE, (M.Poisson(), M.MeanSquaredLogarithmicError())),
}


def test_every_metric_of_keras_is_checked() -> None:
    made = {name for name, cls in vars(M).items() if inspect.isclass(cls)}
    checked = {type(metric).__name__ for _, _, metrics in METRICS.values() for metric in metrics}
    assert made - {"Metric", "Mean", "MeanMetricWrapper", "Sum"} == checked


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", METRICS)
def test_silent_on_metrics_of_keras(kind: str, weighted: bool, make_loop: Any) -> None:
    net, y, metrics = METRICS[kind]
    options = {"weighted_metrics" if weighted else "metrics": [type(m).from_config(m.get_config()) for m in metrics]}
    weight = [rng.uniform(0, 2, 24).astype("float32")] if weighted else []
    loss = "sparse_categorical_crossentropy" if y is CLASSES else "mse"
    _check(make_loop(TWO, net, loss=loss, **options), X, y, *weight)


def test_silent_on_what_is_known_to_depend_on_the_cut(make_loop: Any) -> None:
    def net() -> Any:
        layers = [L.Dense(8), L.BatchNormalization(), L.ReLU(), L.Dropout(0.5), L.GaussianNoise(0.3), L.Dense(1)]
        return sequential((4,), *layers)

    _check(make_loop(TWO, net, metrics=["mae"]), X, X[:, :1])


def test_silent_on_regularisers_masks_and_several_outputs(make_loop: Any) -> None:
    def net() -> Any:
        inputs = {"tokens": keras.Input((6,), dtype="int32", name="tokens"), "x": keras.Input((4,), name="x")}
        read = L.LSTM(4, return_sequences=True)(L.Embedding(5, 4, mask_zero=True)(inputs["tokens"]))
        tags = L.Dense(3, kernel_regularizer="l2", activity_regularizer="l2", activation="softmax", name="tags")(read)
        mood = L.Dense(1, bias_regularizer="l1", name="mood")(L.concatenate([inputs["x"], read[:, -1]]))
        return keras.Model(inputs, {"tags": tags, "mood": mood})

    tokens = rng.integers(0, 5, (24, 6)).astype("int32")
    y = {"tags": rng.integers(0, 3, (24, 6)), "mood": X[:, :1]}
    options = {"loss": {"tags": "sparse_categorical_crossentropy", "mood": "mse"}, "metrics": {"tags": ["accuracy"]}}
    loop = make_loop(TWO, net, **options)
    _check(loop, {"tokens": tokens, "x": X}, y, {"tags": rng.uniform(size=24), "mood": rng.uniform(size=24)})


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_silent_in_low_precision(policy: str, make_loop: Any) -> None:
    def net() -> Any:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return sequential((4,), *[L.Dense(32, activation="relu") for _ in range(6)], L.Dense(1, dtype="float32"))
        finally:
            keras.config.set_dtype_policy(before)

    _check(make_loop(TWO, net, metrics=["mae"], loss_scale=8.0), X, X[:, :1])


# --- red


def _f1(y: Any, y_pred: Any) -> Any:
    hits = ops.sum(y * ops.round(y_pred))
    return 2 * hits / (ops.sum(y) + ops.sum(ops.round(y_pred)) + 1e-7)


class _MeanOfBatches(M.Metric):
    def __init__(self) -> None:
        super().__init__(name="of_batches")
        self.total, self.count = self.add_variable((), "zeros"), self.add_variable((), "zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.mean(ops.abs(y - y_pred)))
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return self.total / self.count


@pytest.mark.parametrize(
    ("metric", "name"), [(_f1, "_f1"), (_MeanOfBatches(), "of_batches")], ids=["function", "class"]
)
def test_a_metric_of_whole_batches(metric: Any, name: str, make_loop: Any) -> None:
    loop = make_loop(TWO, _binary, loss="mse", metrics=[metric, "mae"])
    with pytest.raises(
        StepError, match=rf"the metric '{name}'.*5 \+ 11 rows.*shape \[batch\].*unchecked=\('{name}',\)"
    ):
        _check(loop, X, BINARY)
    again = make_loop(TWO, _binary, loss="mse", metrics=[metric, "mae"], unchecked=(name,))
    _check(again, X, BINARY)


def test_a_metric_that_shows_no_fault_with_these_predictions(make_loop: Any) -> None:
    def net() -> Any:  # all predictions on one side of 0.5: F1 is 0 for the batch and for its parts
        return sequential((4,), L.Dense(1, activation="sigmoid", bias_initializer=keras.initializers.Constant(-9.0)))

    @keras.saving.register_keras_serializable("tests")
    def f1_as_rows(y: Any, y_pred: Any) -> Any:  # of [batch], so that its count adds up
        return _f1(y, y_pred) * ops.ones_like(y[:, 0])

    with pytest.raises(StepError, match="the metric 'f1_as_rows'"):
        _check(make_loop(TWO, net, loss="mse", metrics=[f1_as_rows]), X, BINARY)


def _pairs(y: Any, y_pred: Any) -> Any:
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    return ops.logsumexp(similarity, axis=1) - ops.sum(y_pred * y_pred, axis=1)


@pytest.mark.parametrize("loss", [_pairs, keras.losses.Circle()], ids=["function", "Circle"])
def test_a_loss_over_pairs(loss: Any, make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), L.Dense(3), L.UnitNormalization())

    with pytest.raises(StepError, match=r"The loss \((_pairs|Circle)\).*own example alone"):
        _check(make_loop(TWO, net, loss=loss), X, CLASSES)


def test_an_accumulated_update_is_cut_too(make_loop: Any) -> None:
    loop = make_loop(
        ("one_device", 1), lambda: sequential((4,), L.Dense(3)), loss=_pairs, metrics=["mae"], accumulate=2
    )
    with pytest.raises(StepError, match=r"2 shards of a batch.*The loss \(_pairs\)"):
        _check(loop, X, ONE_HOT)
    # A metric sees batches there, as in Keras.
    _check(make_loop(("one_device", 1), _binary, metrics=[_f1], accumulate=2), X, BINARY)


def test_a_rare_label_that_alone_shows_it(make_loop: Any) -> None:
    def balanced(y: Any, y_pred: Any) -> Any:
        rare = ops.cast(ops.equal(y, 1), "float32")
        return ops.mean(ops.square(y - y_pred), -1) + ops.max(rare)

    y = np.zeros((24, 1), "float32")
    y[7] = 1  # not among the rows that are seen
    with pytest.raises(StepError, match=r"The loss \(balanced\)"):
        _check(make_loop(TWO, _binary, loss=balanced), X, y)


class _Adds(L.Layer):  # type: ignore[name-defined]
    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * self.reduce(ops.square(x)))
        return x


def test_a_sum_given_to_add_loss(make_loop: Any) -> None:
    with pytest.raises(
        StepError, match=r"adds .* to the loss .* for 16 rows, but the mean over parts.*Add a mean over the rows"
    ):
        _check(make_loop(TWO, lambda: sequential((4,), L.Dense(3), _Adds(ops.sum), L.Dense(1))), X, X[:, :1])
    _check(make_loop(TWO, lambda: sequential((4,), L.Dense(3), _Adds(ops.mean), L.Dense(1))), X, X[:, :1])


class _AddsInTraining(L.Layer):  # type: ignore[name-defined]
    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(0.1 * self.reduce(ops.square(x)))
        return x


@pytest.mark.parametrize("before", [(), (L.BatchNormalization, L.Dropout)], ids=["plain", "known to depend on the cut"])
def test_a_sum_that_is_added_in_training_alone(before: Any, make_loop: Any) -> None:
    def net(reduce: Any) -> Any:
        known = [kind(*(0.3,) * (kind is L.Dropout)) for kind in before]
        return sequential((4,), L.Dense(8), *known, _AddsInTraining(reduce), L.Dense(1))

    with pytest.raises(StepError, match="Add a mean over the rows"):
        _check(make_loop(TWO, lambda: net(ops.sum)), X, X[:, :1])
    _check(make_loop(TWO, lambda: net(ops.mean)), X, X[:, :1])


@pytest.mark.parametrize("x", [X[:1], np.repeat(X[:1], 24, axis=0)], ids=["one row", "equal rows"])
def test_a_sum_given_to_add_loss_shows_on_any_rows(x: Any, make_loop: Any) -> None:
    with pytest.raises(StepError, match="Add a mean over the rows"):
        _check(make_loop(TWO, lambda: sequential((4,), _Adds(ops.sum), L.Dense(1))), x, x[:, :1])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_silent_on_activity_regularisers(policy: str, make_loop: Any) -> None:
    def net() -> Any:
        keras.config.set_dtype_policy(policy)
        try:
            hidden = L.Dense(64, activation="relu", activity_regularizer="l2")
            return sequential((4,), hidden, L.ActivityRegularization(0.1), L.Dense(1, dtype="float32"))
        finally:
            keras.config.set_dtype_policy("float32")

    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(24, 4)).astype("float32")
        _check(make_loop(TWO, net, loss_scale=8.0), x, x[:, :1])


def test_silent_on_losses_of_noise(make_loop: Any) -> None:
    class Sampled(L.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x: Any) -> Any:
            z = x + keras.random.normal(ops.shape(x), seed=self.seeds)
            self.add_loss(ops.mean(ops.sum(0.5 * z**2 - 0.5 * (z - x) ** 2, -1)))
            return z

    for seed in range(6):
        x = np.random.default_rng(seed).normal(size=(24, 4)).astype("float32")
        _check(make_loop(TWO, lambda: sequential((4,), L.Dense(4), Sampled(), L.Dense(1))), x, x[:, :1])


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - ops.mean(x, axis=0, keepdims=True),
        lambda x: ops.cumsum(x, axis=0),
        lambda x: ops.softmax(x, axis=0),
        lambda x: ops.concatenate([x, ops.roll(x, 1, axis=0)], -1),
    ],
    ids=["mean", "cumsum", "softmax", "roll"],
)
def test_a_model_that_mixes_the_rows(mix: Any, make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(inputs, L.Dense(1)(mix(L.Dense(3)(inputs))))

    with pytest.raises(StepError, match=r"depends on the other examples of its batch.*unchecked=\('rows',\)"):
        _check(make_loop(TWO, net), X, X[:, :1])


def test_noise_in_evaluation_too_is_no_mixing(make_loop: Any) -> None:
    class Sampling(L.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x: Any) -> Any:
            return x + keras.random.normal(ops.shape(x), seed=self.seeds)

    _check(make_loop(TWO, lambda: sequential((4,), Sampling(), L.Dense(1))), X, X[:, :1])


class _Remembers(L.Layer):  # type: ignore[name-defined]
    """Keeps `new(old, x)` in training."""

    def __init__(self, new: Any, first: float = 1.0, dtype: str = "float32", **options: Any) -> None:
        super().__init__(name="remembers")
        self.new, self.first, self.kept_as, self.options = new, first, dtype, options

    def build(self, shape: Any) -> None:
        start = keras.initializers.Constant(self.first)
        self.kept = self.add_weight(
            shape=(), initializer=start, dtype=self.kept_as, trainable=False, name="kept", **self.options
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.kept.assign(self.new(self.kept, x))
        return x


@pytest.mark.parametrize(
    ("new", "options", "found"),
    [
        (lambda old, x: old + ops.sum(x), {}, "a sum over the rows"),
        (lambda old, x: 0.9 * old + 0.1 * ops.sum(ops.cast(x > 0, "float32")), {}, "a sum over the rows"),
        (lambda old, x: ops.maximum(old, ops.max(x)), {"first": -9.0}, "a maximum over the rows"),
        (lambda old, x: ops.minimum(old, ops.min(x)), {"first": 9.0}, "a minimum over the rows"),
        (
            lambda old, x: old + ops.cast(ops.shape(x)[0], "int64"),
            {"dtype": "int64"},
            "an integer that depends on the rows",
        ),
        (lambda old, x: old + 1.0, {"aggregation": "sum"}, "asks for aggregation='sum'"),
    ],
    ids=["sum", "moving sum", "maximum", "minimum", "examples", "aggregation"],
)
def test_state_that_is_no_mean(new: Any, options: dict[str, Any], found: str, make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((4,), _Remembers(new, **options), L.Dense(1)))
    with pytest.raises(
        StepError, match=rf"The state '[\w/]*remembers/kept' of a layer (is )?{found}.*mean over the examples"
    ):
        _check(loop, X, X[:, :1])


@pytest.mark.parametrize(
    ("new", "options"),
    [
        (lambda old, x: 0.9 * old + 0.1 * ops.mean(x), {}),
        (lambda old, x: old + 1, {"dtype": "int64"}),
        (lambda old, x: old + 1.0, {}),
        (lambda old, x: 0.9 * old + 0.1 * ops.var(x), {}),  # as BatchNormalization's
        (lambda old, x: 0.9999 * old + 0.0001 * ops.mean(ops.sigmoid(0.1 * x)), {"first": 10.0}),
        (lambda old, x: 0.9999 * old + 0.0001 * ops.mean(ops.sigmoid(0.1 * x)), {"first": 0.5}),
    ],
    ids=["moving mean", "calls", "calls as a float", "variance", "far from its mean", "at its mean"],
)
def test_state_that_can_be_combined(new: Any, options: dict[str, Any], make_loop: Any) -> None:
    _check(make_loop(TWO, lambda: sequential((4,), _Remembers(new, **options), L.Dense(1))), X, X[:, :1])


# --- how it is asked for


@pytest.mark.parametrize("kind", ["batches", "resident", "tf.data"])
def test_fit_checks_once_and_trains_on_every_batch_all_the_same(kind: str, make_loop: Any) -> None:
    split = mk.data.arrays(X, X[:, :1])
    if kind == "tf.data":
        data = plain_dataset(X, X[:, :1], batch=8)
    else:
        data = getattr(mk.data, kind)(split, global_batch_size=8, shuffle=True, seed=0)
    checked, without = (make_loop(TWO, line_net, unchecked=names) for names in ((), ("loss",)))
    without.step.for_loop(without.strategy)._checked.add("train")
    seen: list[Any] = []
    step = checked.step.for_loop(checked.strategy)
    check_batch = step._check_batch
    step._check_batch = lambda what, batch: (seen.append(batch), check_batch(what, batch))
    for loop in (checked, without):
        loop.fit(data, epochs=2, verbose=0)
        loop.fit(data, epochs=1, verbose=0)
    assert len(seen) == 1
    assert tuple(seen[0][0].shape) == (8, 4)
    assert largest_difference(checked.step.model.get_weights(), without.step.model.get_weights()) == 0.0


def test_fit_refuses_before_the_first_step(make_loop: Any) -> None:
    loop = make_loop(TWO, _binary, loss="mse", metrics=[_f1])
    before = loop.step.model.get_weights()
    for _ in range(2):  # a second try is no way around
        with pytest.raises(StepError, match="the metric '_f1'"):
            loop.fit(plain_dataset(X, BINARY, batch=8), verbose=0)
    assert largest_difference(loop.step.model.get_weights(), before) == 0.0
    assert int(loop.step.optimizer.iterations.numpy()) == 0


def test_evaluation_alone_is_checked_too(make_loop: Any) -> None:
    loop = make_loop(TWO, _binary, loss="mse", metrics=[_f1])
    for _ in range(2):  # a second try is no way around
        with pytest.raises(StepError, match="the metric '_f1'"):
            loop.evaluate(plain_dataset(X, BINARY, batch=8))
    right = make_loop(TWO, _binary, loss="mse", metrics=["mae"])
    right.evaluate(plain_dataset(X, BINARY, batch=8))
    assert right.step.for_loop(right.strategy).first_batch_check("test") is None
    assert right.step.for_loop(right.strategy).first_batch_check() is not None  # training has batches of its own


def test_one_device_is_as_keras_and_not_checked(make_loop: Any) -> None:
    loop = make_loop(("one_device", 1), _binary, loss="mse", metrics=[_f1])
    assert loop.step.for_loop(loop.strategy).first_batch_check() is None


def test_a_name_that_is_not_checked(make_loop: Any) -> None:
    with pytest.raises(StepError, match=r"unchecked=\['f1'\] names nothing.*add_loss, loss, mae, rows, state"):
        _check(make_loop(TWO, line_net, metrics=["mae"], unchecked="f1"), X, X[:, :1])


def test_a_function_that_cannot_be_checked_names_the_way_out(make_loop: Any) -> None:
    def of_pairs(y: Any, y_pred: Any) -> Any:  # right where each share is even
        apart = y_pred[0::2] - y_pred[1::2]
        return ops.mean(ops.square(ops.concatenate([apart, apart], 0) - y), -1)

    with pytest.raises(StepError, match=r"parts failed for 'loss': InvalidArgumentError.*unchecked=\('loss',\)"):
        _check(make_loop(TWO, line_net, loss=of_pairs), X, X[:, :1])
    loop = make_loop(TWO, line_net, loss=of_pairs, unchecked=("loss",))
    loop.fit(plain_dataset(X, X[:, :1], batch=8), verbose=0)


def test_what_fails_on_all_rows_is_left_to_the_training(make_loop: Any, caplog: Any) -> None:
    def in_graphs_only(y: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y - y_pred), -1) + 0 * tf.gradients(y_pred, y_pred)[0][:, 0]

    make_loop(TWO, line_net, loss=in_graphs_only).fit(plain_dataset(X, X[:, :1], batch=8), verbose=0)
    assert "could not be checked for 'loss': RuntimeError: tf.gradients is not supported" in caplog.text
    loop = make_loop(TWO, _shares, loss="sparse_categorical_crossentropy")
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value of 7"):
        loop.fit(plain_dataset(X, np.full(24, 7), batch=24), verbose=0)


def test_a_model_that_takes_no_other_number_of_rows_is_told_of(make_loop: Any, caplog: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(inputs, L.Dense(1)(ops.reshape(inputs, (4, 4))))

    loop = make_loop(TWO, net)
    loop.fit(plain_dataset(X[:16], X[:16, :1], batch=8), verbose=0)
    assert "the model does not take 3 rows" in caplog.text


def test_a_static_batch_size_is_no_way_around(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input(batch_shape=(24, 4))
        return keras.Model(inputs, L.Dense(1, activation="sigmoid")(inputs))

    with pytest.raises(StepError, match="the metric '_f1'"):
        _check(make_loop(TWO, net, loss="mse", metrics=[_f1]), X, BINARY)


def test_recurrent_layers_are_traced_and_checked_all_the_same(make_loop: Any) -> None:
    class Mixing(L.Layer):  # type: ignore[name-defined]
        calls = 0

        def call(self, x: Any) -> Any:
            Mixing.calls += 1
            return x - ops.mean(x, axis=0, keepdims=True)

    def net() -> Any:
        return sequential((6,), L.Embedding(5, 2, mask_zero=True), L.GRU(3), Mixing(), L.Dense(1))

    loop = make_loop(TWO, net)
    Mixing.calls = 0
    with pytest.raises(StepError, match="depends on the other examples"):
        _check(loop, rng.integers(0, 5, (24, 6)), X[:, :1])
    assert Mixing.calls <= 3  # to learn its shape, then a trace for evaluation and one for training


def test_warm_up_pays_for_the_check_of_a_recipe(make_loop: Any) -> None:
    recipe = mk.data.batches(mk.data.arrays(X, BINARY), global_batch_size=8)
    loop = make_loop(TWO, _binary, loss="mse", metrics=["mae"])
    loop.warm_up(recipe)
    assert loop.step.for_loop(loop.strategy).first_batch_check() is None
    with pytest.raises(StepError, match="the metric '_f1'"):
        make_loop(TWO, _binary, loss="mse", metrics=[_f1]).warm_up(recipe)


def test_evaluation_does_not_mind_what_training_alone_does(make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), _Remembers(lambda old, x: old + ops.sum(x)), _AddsInTraining(ops.sum), L.Dense(1))

    make_loop(TWO, net, metrics=["mae"]).evaluate(plain_dataset(X, X[:, :1], batch=8))


def test_a_batch_of_one_row(make_loop: Any) -> None:
    _check(make_loop(TWO, line_net, metrics=["mae"]), X[:1], X[:1, :1])


def test_a_function_that_asks_for_more_than_other_predictions_give(make_loop: Any) -> None:
    def of_positive(y: Any, y_pred: Any) -> Any:
        tf.debugging.assert_positive(y_pred)
        return ops.mean(ops.square(y - ops.log(y_pred)), -1)

    net = sequential((4,), L.Dense(1, activation="softplus"), L.Rescaling(5.0))
    _check(make_loop(TWO, lambda: keras.models.clone_model(net), loss=of_positive), X, X[:, :1])


def test_outputs_whose_rows_are_no_examples(make_loop: Any) -> None:
    def per_token(y: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(ops.reshape(y_pred, (-1, 6)) - y), -1)

    def net() -> Any:
        inputs = keras.Input((6, 2))
        return keras.Model(inputs, ops.reshape(L.Dense(1)(inputs), (-1, 1)))

    x = rng.normal(size=(24, 6, 2)).astype("float32")
    _check(make_loop(TWO, net, loss=per_token), x, rng.normal(size=(24, 6)).astype("float32"))
