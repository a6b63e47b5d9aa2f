"""The check of the first batch names what layers add, mix or remember over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from first_batch_helpers import TWO, AddsInTraining, Remembers, X, check
from step_helpers import with_policy
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
M = keras.metrics
ops = keras.ops
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model"),
]


@pytest.mark.slow
@pytest.mark.parametrize("x", [X, X[:1], np.repeat(X[:1], 24, axis=0)], ids=["rows", "one row", "equal rows"])
def test_a_sum_given_to_add_loss(x: Any, make_loop: Any) -> None:
    def net(reduce: Any) -> Any:
        return sequential((4,), L.Dense(3), AddsInTraining(reduce, always=True), L.Dense(1))

    with pytest.raises(StepError, match=r"for \d rows.*Add a mean over the rows"):
        check(make_loop(TWO, lambda: net(ops.sum)), x, x[:, :1])
    check(make_loop(TWO, lambda: net(ops.mean)), x, x[:, :1])


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


def test_a_small_loss_that_balances_experts(make_loop: Any) -> None:
    with pytest.raises(StepError, match=r"The layer '__routes' adds .* 8 rows, .* for 16\..*unchecked=\('add_loss',\)"):
        check(make_loop(TWO, lambda: sequential((4,), _Routes(), L.Dense(1))), X, X[:, :1])


class _CentersALittle(L.Layer):  # type: ignore[name-defined]
    def call(self, x: Any) -> Any:
        return x - 0.01 * ops.mean(x, axis=0, keepdims=True)


def test_a_little_of_a_batchs_mean_in_mixed_precision(make_loop: Any) -> None:
    """In 16 bits it would be as small as rounding."""

    def net(*layers: Any) -> Any:
        return sequential((4,), L.Dense(8), *layers, L.Dense(1))

    with with_policy("mixed_bfloat16"):
        right, mixing = make_loop(TWO, net), make_loop(TWO, lambda: net(_CentersALittle()))
    policies = [layer.dtype_policy.name for layer in right.step.model.layers]
    check(right, X, X[:, :1])
    assert [layer.dtype_policy.name for layer in right.step.model.layers] == policies
    with pytest.raises(StepError, match="depends on the other examples"):
        check(mixing, X, X[:, :1])


def test_a_part_of_the_loss_that_is_a_millionth(make_loop: Any) -> None:
    """Adam makes its gradients as large as the others."""

    def net() -> Any:
        x = keras.Input((4,))
        small = L.Dense(1, name="small")
        return keras.Model(x, [L.Dense(1)(x), AddsInTraining(lambda x: 1e-3 * ops.var(x))(small(x))])

    loop = make_loop(TWO, net, keras.optimizers.Adam, loss=["mse", "mse"], loss_weights=[1e5, 0.0])
    with pytest.raises(StepError, match=r"adds .* to the loss"):
        check(loop, X, (X[:, :1], X[:, :1]))


def test_rows_from_all_over_a_set_in_memory(make_loop: Any) -> None:
    """The first batch alone would show nothing: its rows are equal."""
    x = np.concatenate([np.tile(X[:1], (24, 1)), X])
    data = mk.data.batches(mk.data.arrays(x, x[:, :1]), global_batch_size=8)
    loop = make_loop(TWO, lambda: sequential((4,), _CentersALittle(), L.Dense(1)))
    with pytest.raises(StepError, match="depends on the other examples"):
        loop.fit(data, verbose=0)
    assert loop.position.steps == 0


def test_a_mean_of_an_activity_regularizer(make_loop: Any) -> None:
    """Keras divides it by the rows."""

    def net(reduce: Any) -> Any:
        return sequential((4,), L.Dense(3, activity_regularizer=lambda x: reduce(ops.square(x))), L.Dense(1))

    with pytest.raises(StepError, match="activity_regularizer returns the sum over the rows"):
        check(make_loop(TWO, lambda: net(ops.mean)), X, X[:, :1])
    check(make_loop(TWO, lambda: net(ops.sum)), X, X[:, :1])


_USES_ALL = r"on the other examples of its batch, on how many.*\(training=True\)"


class _Applies(L.Layer):
    """A function in training alone, or always."""

    def __init__(self, function: Any, *, always: bool = False) -> None:
        super().__init__()
        self.function, self.always = function, always

    def call(self, x: Any, training: bool = False) -> Any:
        return self.function(x) if training or self.always else x


@pytest.mark.slow
@pytest.mark.parametrize("known", [(), pytest.param((L.BatchNormalization,), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.3 * ops.roll(x, 1, axis=0),
        lambda x: x - ops.mean(x, axis=0, keepdims=True),
        lambda x: x * ops.cast(ops.shape(x)[0], "float32") / 12,
    ],
    ids=["neighbours", "centered", "number of rows"],
)
def test_a_layer_that_uses_all_rows_in_training_alone(change: Any, known: Any, make_loop: Any) -> None:
    """Beside one that is known to; the fast test beside Dropout: below."""

    def net() -> Any:
        return sequential((4,), L.Dense(8), *(kind() for kind in known), _Applies(change), L.Dense(1))

    with pytest.raises(StepError, match=_USES_ALL):
        check(make_loop(TWO, net), X, X[:, :1])


def test_an_outlier_anywhere_in_the_batch(make_loop: Any) -> None:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    scaled = _Applies(lambda x: x / ops.maximum(9.0, ops.max(ops.abs(x))))
    check(make_loop(TWO, lambda: sequential((4,), scaled, L.Dense(1))), x, x[:, :1])
    x[51] *= 50
    with pytest.raises(StepError, match=_USES_ALL):
        check(make_loop(TWO, lambda: sequential((4,), scaled, L.Dense(1))), x, x[:, :1])


def test_texts_that_are_padded_to_the_longest_of_a_share(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((1,), dtype="string")
        words = L.Embedding(4, 3, name="words")(L.TextVectorization(vocabulary=["a", "b"])(inputs))
        return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(words)))

    texts = np.array([["a b"]] * 23 + [["a b a b"]])
    with pytest.raises(StepError, match=r"What 'words'.* depends on the other examples"):
        check(make_loop(TWO, net), texts, X[:, :1])


@pytest.mark.slow
def test_a_layer_that_mixes_rows_in_training_beside_dropout(make_loop: Any) -> None:
    """And one that does not, which raises no alarm."""

    def net(change: Any, *layers: Any) -> Any:
        return sequential((4,), L.Dense(8), *layers, L.Dropout(0.3), _Applies(change), L.Dense(1))

    with pytest.raises(StepError, match=_USES_ALL):
        check(make_loop(TWO, lambda: net(lambda x: x + ops.roll(x, 1, 0))), X, X[:, :1])
    check(make_loop(TWO, lambda: net(ops.square, L.BatchNormalization())), X, X[:, :1])


def test_a_model_that_cannot_predict_is_compared_as_it_trains(make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((8, 8, 3), L.RandomCrop(6, 6), L.Flatten(), L.Dense(1)))
    check(loop, np.random.default_rng(0).uniform(size=(24, 8, 8, 3)).astype("float32"), X[:, :1])


class _Wrapped(L.BatchNormalization):  # type: ignore[name-defined]
    def call(self, x: Any, training: Any = None) -> Any:
        return super().call(x, training=training)


class _Renormalized(L.BatchNormalization):  # type: ignore[name-defined]
    def call(self, x: Any) -> Any:
        return super().call(x, training=False)


@pytest.mark.parametrize("kind", [L.BatchNormalization, _Renormalized, _Wrapped, L.MixUp, L.CutMix])
def test_layers_of_keras_that_mix_rows_in_training_raise_no_alarm(kind: Any, make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((8, 8, 3), kind(), L.Flatten(), L.Dense(1)))
    pictures = np.random.default_rng(0).uniform(size=(24, 8, 8, 3)).astype("float32")
    check(loop, pictures, X[:, :1])
    assert not any({"call", "_mirrorkit_at_rest"} & set(vars(layer)) for layer in loop.step.model.layers)


class _OwnStatistics(L.BatchNormalization):  # type: ignore[name-defined]
    """It divides by the largest number of its batch, too."""

    def call(self, x: Any, training: Any = None) -> Any:
        x = super().call(x, training=training)
        return x / ops.max(ops.abs(x)) if training else x


@pytest.mark.slow
@pytest.mark.parametrize("synchronized", [False, True])
def test_statistics_that_a_subclass_adds_are_compared(synchronized: bool, make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((4,), _OwnStatistics(synchronized=synchronized), L.Dense(1)))
    with pytest.raises(StepError, match=_USES_ALL):
        check(loop, X, X[:, :1])


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


class _OnWeights(L.Layer):  # type: ignore[name-defined]
    """Noise on the weights, which all rows share."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 5))
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, x: Any) -> Any:
        return x @ (self.kernel + keras.random.normal((3, 5), seed=self.seeds))


def test_a_draw_for_a_weight_is_the_same_for_all_rows(make_loop: Any) -> None:
    check(make_loop(TWO, lambda: sequential((3,), _OnWeights(), L.Dense(1))), X[:, :3], X[:, :1])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: ops.mean(x, axis=0, keepdims=True),
        lambda x: ops.mean(ops.reshape(x, (1, -1)), axis=1, keepdims=True),
    ],
    ids=["a mean over the rows", "one row of all"],
)
def test_an_output_of_one_row(change: Any, make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), L.Dense(1), L.Lambda(change))

    with pytest.raises(StepError, match=r"\[1, 1\] for 24 rows"):
        check(make_loop(TWO, net), X, X[:, :1])


@pytest.mark.slow
@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + keras.random.normal(ops.shape(x), seed=42),
        lambda x: keras.random.dropout(x, 0.5, seed=7),
        lambda x: x + ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None],
        lambda x: 0.7 * x + 0.3 * ops.flip(x, axis=0),
    ],
    ids=["constant seed", "dropout", "numbered", "mixup"],
)
def test_what_depends_on_the_place_of_a_row(function: Any, always: bool, make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), L.Dense(8), _Applies(function, always=always), L.Dense(1))

    with pytest.raises(StepError, match=r"depends on (its place in the batch|the other examples)"):
        check(make_loop(TWO, net), X, X[:, :1])


@pytest.mark.slow
@pytest.mark.parametrize("beside", [(), (L.BatchNormalization, L.Dropout)], ids=["alone", "beside others"])
@pytest.mark.parametrize("always", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_a_generator_draws_may_depend_on_the_place(always: bool, beside: Any, make_loop: Any) -> None:
    def net() -> Any:
        noise = _Applies(lambda x: x + keras.random.normal(ops.shape(x), seed=noise.seed), always=always)
        noise.seed = keras.random.SeedGenerator(3)
        others = [kind(*(0.5,) * (kind is L.Dropout)) for kind in beside]
        return sequential((4,), L.Dense(8), *others, noise, L.Dense(1))

    check(make_loop(TWO, net), X, X[:, :1])


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
    def net() -> Any:
        return sequential((4,), Remembers(new, **options), L.Dense(1))

    with pytest.raises(StepError, match=r"leaves 'sequential.*/remembers/kept' at .*unchecked=\('state',\)"):
        check(make_loop(TWO, net), X, X[:, :1])
    check(make_loop(TWO, net, unchecked=("state",)), X, X[:, :1])


@pytest.mark.parametrize(
    ("new", "options"),
    [
        (lambda old, x: 0.9 * old + 0.1 * ops.mean(x), {}),
        (lambda old, x: old + 1, {"dtype": "int64"}),
        (lambda old, x: old + 1.0, {}),
        (lambda old, x: old + 1.0, {"aggregation": "sum"}),
        (lambda old, x: 0.9999 * old + 0.0001 * ops.mean(ops.sigmoid(0.1 * x)), {"first": 10.0}),
        (lambda old, x: 0.9999 * old + 0.0001 * ops.mean(ops.sigmoid(0.1 * x)), {"first": 0.5}),
    ],
    ids=["moving mean", "calls", "calls as a float", "calls, summed in Keras", "far from its mean", "at its mean"],
)
def test_state_that_can_be_combined(new: Any, options: dict[str, Any], make_loop: Any) -> None:
    check(make_loop(TWO, lambda: sequential((4,), Remembers(new, **options), L.Dense(1))), X, X[:, :1])


def test_an_output_that_is_none_is_not_compared(make_loop: Any) -> None:
    class Net(keras.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = L.Dense(1)

        def call(self, x: Any) -> Any:
            return {"a": self.last(x), "b": None}

    def net() -> Any:
        net = Net()
        net(X)
        return net

    check(make_loop(TWO, net, loss={"a": "mse"}), X, {"a": X[:, :1]})
