"""The check of the first batch names what layers add, mix or remember over rows."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import TWO, AddsInTraining, X, check
from step_helpers import with_policy
from training_helpers import Keeps, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
M = keras.metrics
ops = keras.ops
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model"),
]


Y = X[:, :1]
MANY = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
OUTLIER = np.where(np.arange(64)[:, None] == 51, 50, 1) * MANY
PICTURES = np.random.default_rng(0).uniform(size=(24, 8, 8, 3)).astype("float32")
TEXTS = np.array([["a b"]] * 23 + [["a b a b"]])
_USES_ALL = r"on the other examples of its batch, on how many.*\(training=True\)"


class _Routes(L.Layer):  # type: ignore[name-defined]
    """A mixture of experts, whose balancing loss multiplies two means over the rows."""

    def build(self, shape: Any) -> None:
        self.gate = self.add_weight(shape=(shape[-1], 4), name="gate")
        self.experts = self.add_weight(shape=(4, shape[-1], shape[-1]), name="experts")

    def call(self, x: Any) -> Any:
        shares = ops.softmax(ops.matmul(x, self.gate))
        chosen = ops.one_hot(ops.argmax(shares, -1), 4)
        self.add_loss(0.04 * ops.sum(ops.mean(chosen, 0) * ops.mean(shares, 0)))
        return x + ops.einsum("be,edf,bd->bf", chosen * shares, self.experts, x)


class _CentersALittle(L.Layer):  # type: ignore[name-defined]
    def call(self, x: Any) -> Any:
        return x - 0.01 * ops.mean(x, axis=0, keepdims=True)


class _Applies(L.Layer):
    """A function in training alone, or always."""

    def __init__(self, function: Any, *, always: bool = False) -> None:
        super().__init__()
        self.function, self.always = function, always

    def call(self, x: Any, training: bool = False) -> Any:
        return self.function(x) if training or self.always else x


class _OwnStatistics(L.BatchNormalization):  # type: ignore[name-defined]
    """It divides by the largest number of its batch, too."""

    def call(self, x: Any, training: Any = None) -> Any:
        x = super().call(x, training=training)
        return x / ops.max(ops.abs(x)) if training else x


class _OnWeights(L.Layer):  # type: ignore[name-defined]
    """Noise on the weights, which all rows share."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(4, 5))
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x: Any) -> Any:
        return x @ (self.kernel + keras.random.normal((4, 5), seed=self.seeds))


class _WithNone(keras.Model):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.last = L.Dense(1)
        self(X)

    def call(self, x: Any) -> Any:
        return {"a": self.last(x), "b": None}


def _with(*layers: Any) -> Any:
    """A linear net behind these layers; each is a function that makes one."""
    return lambda: sequential((4,), *(layer() for layer in layers), L.Dense(1))


def _regularized(reduce: Any) -> Any:
    return _with(lambda: L.Dense(3, activity_regularizer=lambda x: reduce(ops.square(x))))


def _scaled() -> Any:
    return _Applies(lambda x: x / ops.maximum(9.0, ops.max(ops.abs(x))))


def _a_millionth() -> Any:
    """Adam makes the gradients of a part of the loss that is a millionth as large as the others."""
    x = keras.Input((4,))
    small = L.Dense(1, name="small")
    return keras.Model(x, [L.Dense(1)(x), AddsInTraining(lambda x: 1e-3 * ops.var(x))(small(x))])


def _padded_to_the_longest() -> Any:
    inputs = keras.Input((1,), dtype="string")
    words = L.Embedding(4, 3, name="words")(L.TextVectorization(vocabulary=["a", "b"])(inputs))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(words)))


def _one_row(change: Any) -> Any:
    return lambda: sequential((4,), L.Dense(1), L.Lambda(change))


def _beside_dropout(change: Any, *layers: Any) -> Any:
    return _with(lambda: L.Dense(8), *layers, lambda: L.Dropout(0.3), lambda: _Applies(change))


def _applied(function: Any, always: bool) -> Any:
    return _with(lambda: L.Dense(8), lambda: _Applies(function, always=always))


def _drawn(always: bool, *beside: Any) -> Any:
    def noisy() -> Any:
        noise = _Applies(lambda x: x + keras.random.normal(ops.shape(x), seed=noise.seed), always=always)
        noise.seed = keras.random.SeedGenerator(3)
        return noise

    return _with(lambda: L.Dense(8), *beside, noisy)


def _a_little(old: Any, x: Any) -> Any:
    return 0.9999 * old + 0.0001 * ops.mean(ops.sigmoid(0.1 * x))


def _keeps(new: Any, **options: Any) -> Any:
    return _with(lambda: Keeps(new, **{"first": 1.0, **options}))


_PLACES: dict[str, Any] = {
    "a constant seed": lambda x: x + keras.random.normal(ops.shape(x), seed=42),
    "dropout with a constant seed": lambda x: keras.random.dropout(x, 0.5, seed=7),
    "numbered": lambda x: x + ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None],
    "mixup": lambda x: 0.7 * x + 0.3 * ops.flip(x, axis=0),
}
_OF_PLACE = r"depends on (its place in the batch|the other examples)"
_OTHERS = (L.BatchNormalization, lambda: L.Dropout(0.5))
_ADAM = {"optimizer": keras.optimizers.Adam, "loss": ["mse", "mse"], "loss_weights": [1e5, 0.0]}
_EXPERTS = r"The layer '__routes' adds .* 8 rows, .* for 16\..*unchecked=\('add_loss',\)"
_REGULARIZER = "activity_regularizer returns the sum over the rows"  # Keras divides it by the rows
_SLOW = ("mixed beside", "squares beside", "own statistics", "of its place", "own draws")  # beginnings of names
CASES: dict[str, tuple[Any, dict[str, Any], Any, Any, str]] = {  # net, options, inputs, targets, what is said
    "experts": (_with(_Routes), {}, X, Y, _EXPERTS),
    "a millionth": (_a_millionth, _ADAM, X, (Y, Y), "adds .* to the loss"),
    "a mean by a regularizer": (_regularized(ops.mean), {}, X, Y, _REGULARIZER),
    "a sum by a regularizer": (_regularized(ops.sum), {}, X, Y, ""),
    "an outlier": (_with(_scaled), {}, OUTLIER, MANY[:, :1], _USES_ALL),
    "no outlier": (_with(_scaled), {}, MANY, MANY[:, :1], ""),
    "texts": (_padded_to_the_longest, {}, TEXTS, Y, "What 'words'.* depends on the other examples"),
    "mixed beside Dropout": (_beside_dropout(lambda x: x + ops.roll(x, 1, 0)), {}, X, Y, _USES_ALL),
    "squares beside Dropout": (_beside_dropout(ops.square, L.BatchNormalization), {}, X, Y, ""),
    "own statistics": (_with(_OwnStatistics), {}, X, Y, _USES_ALL),
    "own statistics, synchronized": (_with(lambda: _OwnStatistics(synchronized=True)), {}, X, Y, _USES_ALL),
    "a mean over the rows": (_one_row(lambda x: ops.mean(x, 0, keepdims=True)), {}, X, Y, r"\[1, 1\] for 24 rows"),
    "one row of all": (_one_row(lambda x: ops.reshape(ops.mean(x), (1, 1))), {}, X, Y, r"\[1, 1\] for 24 rows"),
    # compared as it trains: it cannot predict
    "crops": (lambda: sequential((8, 8, 3), L.RandomCrop(6, 6), L.Flatten(), L.Dense(1)), {}, PICTURES, Y, ""),
    "noise on weights": (_with(_OnWeights), {}, X, Y, ""),
    "an output that is None": (_WithNone, {"loss": {"a": "mse"}}, X, {"a": Y}, ""),
    **{
        f"of its place: {name}, {always=}": (_applied(function, always), {}, X, Y, _OF_PLACE)
        for name, function in _PLACES.items()
        for always in (True, False)
    },
    **{f"own draws, {always=}": (_drawn(always), {}, X, Y, "") for always in (True, False)},
    **{f"own draws beside others, {always=}": (_drawn(always, *_OTHERS), {}, X, Y, "") for always in (True, False)},
    # state that can be combined
    "a moving mean": (_keeps(lambda old, x: 0.9 * old + 0.1 * ops.mean(x)), {}, X, Y, ""),
    "calls": (_keeps(lambda old, x: old + 1, dtype="int64"), {}, X, Y, ""),
    "calls as a float": (_keeps(lambda old, x: old + 1.0), {}, X, Y, ""),
    "calls, summed in Keras": (_keeps(lambda old, x: old + 1.0, aggregation="sum"), {}, X, Y, ""),
    "far from its mean": (_keeps(_a_little, first=10.0), {}, X, Y, ""),
    "at its mean": (_keeps(_a_little, first=0.5), {}, X, Y, ""),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * n.startswith(_SLOW)) for n in CASES])
def test_what_is_said(name: str, make_loop: Any) -> None:
    net, options, x, y, words = CASES[name]
    with pytest.raises(StepError, match=words) if words else contextlib.nullcontext():
        check(make_loop(TWO, net, **options), x, y)


def test_a_little_of_a_batchs_mean_in_mixed_precision(make_loop: Any) -> None:
    """In 16 bits it would be as small as rounding."""
    with with_policy("mixed_bfloat16"):
        right, mixing = (make_loop(TWO, _with(lambda: L.Dense(8), *more)) for more in ((), (_CentersALittle,)))
    policies = [layer.dtype_policy.name for layer in right.step.model.layers]
    check(right, X, Y)
    assert [layer.dtype_policy.name for layer in right.step.model.layers] == policies
    with pytest.raises(StepError, match="depends on the other examples"):
        check(mixing, X, Y)


def test_rows_from_all_over_a_set_in_memory(make_loop: Any) -> None:
    """The first batch alone would show nothing: its rows are equal."""
    x = np.concatenate([np.tile(X[:1], (24, 1)), X])
    data = mk.data.batches(mk.data.arrays(x, x[:, :1]), global_batch_size=8)
    loop = make_loop(TWO, _with(_CentersALittle))
    with pytest.raises(StepError, match="depends on the other examples"):
        loop.fit(data, verbose=0)
    assert loop.position.steps == 0


class _Wrapped(L.BatchNormalization):  # type: ignore[name-defined]
    def call(self, x: Any, training: Any = None) -> Any:
        return super().call(x, training=training)


class _Renormalized(L.BatchNormalization):  # type: ignore[name-defined]
    def call(self, x: Any) -> Any:
        return super().call(x, training=False)


@pytest.mark.parametrize("kind", [L.BatchNormalization, _Renormalized, _Wrapped, L.MixUp, L.CutMix])
def test_layers_of_keras_that_mix_rows_in_training_raise_no_alarm(kind: Any, make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((8, 8, 3), kind(), L.Flatten(), L.Dense(1)))
    check(loop, PICTURES, Y)
    assert not any({"call", "_mirrorkit_at_rest"} & set(vars(layer)) for layer in loop.step.model.layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("units", "classes"),
    [(3, 3), (4, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(3, 1), (4, 3), (6, 1), (6, 3)])],
)
def test_a_draw_of_rows_may_have_the_shape_of_a_weight(units: int, classes: int, make_loop: Any) -> None:
    def net() -> Any:
        noise = [L.Dropout(0.5), L.GaussianNoise(0.3)]
        return sequential((3,), L.Dense(units), noise[0], L.Dense(units), noise[1], L.Dense(classes))

    check(make_loop(TWO, net), X[:, :3], np.zeros([24, classes], np.float32))


_NO_MEAN: dict[str, tuple[Any, dict[str, Any]]] = {
    "sum": (lambda old, x: old + ops.sum(x), {}),
    "moving sum": (lambda old, x: 0.9 * old + 0.1 * ops.sum(ops.cast(x > 0, "float32")), {}),
    "maximum": (lambda old, x: ops.maximum(old, ops.max(x)), {"first": -9.0}),
    "minimum": (lambda old, x: ops.minimum(old, ops.min(x)), {"first": 9.0}),
    "examples": (lambda old, x: old + ops.cast(ops.shape(x)[0], "int64"), {"dtype": "int64"}),
    "root of the examples": (lambda old, x: ops.sqrt(ops.cast(ops.shape(x)[0], "float32") / 16.0), {}),
    "variance": (lambda old, x: 0.999 * old + 0.001 * ops.var(x), {}),
    "two rows": (lambda old, x: ops.mean(x[0] * x[-1]), {"aggregation": "sum"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("new", "options"), _NO_MEAN.values(), ids=_NO_MEAN)
def test_state_that_is_no_mean(new: Any, options: dict[str, Any], make_loop: Any) -> None:
    net = _keeps(new, **options)
    with pytest.raises(StepError, match=r"leaves 'sequential.*/keeps/kept' at .*unchecked=\('state',\)"):
        check(make_loop(TWO, net), X, X[:, :1])
    check(make_loop(TWO, net, unchecked=("state",)), X, X[:, :1])
