"""Models with several outputs, nested ones too: names, losses, weights, metrics and targets as in Keras's fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import needs_keras
from training_helpers import keras_twin, largest_difference

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
TWO = ("mirrored", 2)
WHERE = [pytest.param(("one_device", 1), marks=pytest.mark.slow), TWO]
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def _model(outputs: Any) -> Any:
    """A functional model; `outputs` is a nest of the sizes of its outputs."""

    def net() -> Any:
        inputs = keras.Input((4,))
        hidden = L.Dense(3, activation="tanh")(inputs)
        number = iter(range(9))
        return keras.Model(
            inputs, keras.tree.map_structure(lambda n: L.Dense(n, name=f"d{next(number)}")(hidden), outputs)
        )

    return net


class Subclassed(keras.Model):  # type: ignore[name-defined]
    """A subclassed model whose outputs are a tuple with a dict, as those of `_model((1, {"k": 1}))` are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = L.Dense(1), L.Dense(1)
        self(np.zeros((1, 4), "float32"))

    def call(self, x: Any) -> Any:
        return self.first(x), {"k": self.second(x)}


def _data(targets: Any, numbers: Any, weight: Any = None, batch: int = 20) -> tf.data.Dataset:
    """Three batches; `targets` is a nest of the factors of y."""
    x, y = numbers
    parts = (x, keras.tree.map_structure(lambda factor: factor * y, targets))
    return tf.data.Dataset.from_tensor_slices(parts if weight is None else (*parts, weight)).batch(batch)


def _fit_both(loop: Any, net: Any, data: Any, compiled: dict[str, Any], renamed: dict[str, str] | None = None) -> Any:
    """Train and evaluate both; `renamed` are Keras's log names for which ours is another."""
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.05), **compiled)

    def as_ours(logs: Any) -> Any:
        return {(renamed or {}).get(name, name): value for name, value in logs.items()}

    expected = as_ours(model.fit(data, epochs=2, verbose=0).history)
    found = loop.fit(data, epochs=2, verbose=0).history
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5
    logs, twins = loop.evaluate(data), as_ours(model.evaluate(data, return_dict=True, verbose=0))
    assert set(logs) == set(twins)
    for name, value in twins.items():
        np.testing.assert_allclose(logs[name], value, rtol=2e-5, err_msg=name)
    outputs, others = loop.predict(data), model.predict(data, verbose=0)
    keras.tree.assert_same_structure(outputs, others)
    for one, other in zip(keras.tree.flatten(outputs), keras.tree.flatten(others), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    return found


def _loop(make_loop: Any, where: Any, net: Any, **options: Any) -> Any:
    return make_loop(where, net, lambda: keras.optimizers.SGD(0.05), **options)


def absolute(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - y_pred), axis=-1)


LOSSES = [
    "mse",
    pytest.param(absolute, marks=pytest.mark.slow),
    pytest.param(keras.losses.Huber(), marks=pytest.mark.slow),  # as the object with a reduction
    pytest.param(lambda y, y_pred: keras.ops.sum((y - y_pred) ** 2, axis=-1), marks=pytest.mark.slow),
    keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
]


# --- one loss for all outputs


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=["name", "function", "object", "lambda", "reduction"])
def test_one_loss_for_all_outputs(loss: Any, where: Any, make_loop: Any, numbers: Any) -> None:
    net = _model({"a": 1, "b": 2})
    data = _data({"a": 1.0, "b": -2.0}, numbers)
    found = _fit_both(_loop(make_loop, where, net, loss=loss), net, data, {"loss": loss})
    assert set(found) == {"loss", "a_loss", "b_loss"}


def test_one_loss_for_a_list_of_outputs_with_weights(make_loop: Any, numbers: Any) -> None:
    net, weight = _model([1, 1]), np.linspace(0, 3, 60).astype("float32")
    data = _data((1.0, -2.0), numbers, weight)
    metrics = [["mae"], ["mse"]]
    loop = _loop(make_loop, TWO, net, loss="mse", weighted_metrics=metrics)
    found = _fit_both(loop, net, data, {"loss": "mse", "weighted_metrics": metrics})
    assert set(found) == {"loss", "d0_loss", "d1_loss", "d0_mae", "d1_mse"}


def test_crossentropy_is_of_the_kind_of_each_output(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(
            inputs,
            {"one": L.Dense(1, "sigmoid", name="one")(inputs), "many": L.Dense(3, "softmax", name="many")(inputs)},
        )

    x, y = numbers
    targets = {"one": (y > 0).astype("int32"), "many": np.digitize(y[:, 0], [-1.0, 4.0])}
    data = tf.data.Dataset.from_tensor_slices((x, targets)).batch(20)
    _fit_both(_loop(make_loop, TWO, net, loss="crossentropy"), net, data, {"loss": "crossentropy"})


def test_one_weight_for_one_loss(make_loop: Any, numbers: Any) -> None:
    net, options = _model({"a": 1, "b": 1}), {"loss": "mse", "loss_weights": 0.5}
    _fit_both(_loop(make_loop, TWO, net, **options), net, _data({"a": 1.0, "b": -2.0}, numbers), options)


# --- nested outputs

NESTED = {"u": {"a": 1, "b": 2}, "c": 1}
FACTORS = {"u": {"a": 1.0, "b": 2.0}, "c": -1.0}


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"loss": "mse"}, marks=pytest.mark.slow),  # fast: the tuple with a dict below
        pytest.param({"loss": {"u": {"a": "mse", "b": "mae"}, "c": "mse"}}, marks=pytest.mark.slow),  # with weights too
        {
            "loss": {"u": {"a": "mse", "b": "mae"}, "c": absolute},
            "loss_weights": {"u": {"a": 2.0, "b": 0.5}, "c": 0.25},
        },
        {"loss": {"u": {"a": "mse", "b": None}, "c": "mse"}},
        {"loss": ["mse", "mae", "mse"]},
    ],
    ids=["one", "each", "weights", "not all", "a list"],
)
def test_nested_dicts(options: Any, where: Any, make_loop: Any, numbers: Any) -> None:
    net = _model(NESTED)
    found = _fit_both(_loop(make_loop, where, net, **options), net, _data(FACTORS, numbers), options)
    assert {"u/a_loss", "c_loss"} <= set(found)


@needs_keras((3, 14), "metrics in nested dicts")
def test_metrics_and_weights_of_nested_dicts(make_loop: Any, numbers: Any) -> None:
    net = _model(NESTED)
    weight = {
        "u": {"a": np.linspace(0, 3, 60).astype("float32"), "b": np.linspace(1, 2, 60).astype("float32")},
        "c": np.linspace(2, 0, 60).astype("float32"),
    }
    options = {
        "loss": {"u": {"a": "mse", "b": "mse"}, "c": "mse"},
        "metrics": {"u": {"a": ["mae"], "b": ["mse", "mae"]}, "c": ["mae"]},
        "weighted_metrics": {"u": {"a": ["mse"], "b": []}, "c": []},
    }
    loop = _loop(make_loop, TWO, net, **options)
    # Keras names a loss by its path and a metric by its layer; here both go by the path
    layers = {
        f"d{i}_{metric}": f"{path}_{metric}" for i, path in enumerate(("c", "u/a", "u/b")) for metric in ("mae", "mse")
    }
    found = _fit_both(loop, net, _data(FACTORS, numbers, weight), options, layers)
    assert {"u/a_mae", "u/b_mse", "u/b_mae", "c_mae", "u/a_mse"} <= set(found)


def test_names_of_nested_outputs_serve_as_keys(make_loop: Any, numbers: Any) -> None:
    net, nested = _model(NESTED), {"u": {"a": "mse", "b": "mae"}, "c": "mse"}
    named = {"u/a": "mse", "u/b": "mae", "c": "mse"}
    data = _data(FACTORS, numbers)
    one, other = (_loop(make_loop, TWO, net, loss=loss).fit(data, verbose=0).history for loss in (nested, named))
    assert one == other


@pytest.mark.parametrize("where", WHERE, ids=str)
@pytest.mark.parametrize("kind", [pytest.param("functional", marks=pytest.mark.slow), "subclassed"])
def test_a_tuple_with_a_dict(kind: str, where: Any, make_loop: Any, numbers: Any) -> None:
    net: Any = _model((1, {"k": 1})) if kind == "functional" else Subclassed
    renamed = {} if kind == "functional" else {"mse_loss": "output_0_loss"}  # Keras names such a one by its loss
    data = _data((1.0, {"k": -2.0}), numbers)
    found = _fit_both(_loop(make_loop, where, net), net, data, {"loss": "mse"}, renamed)
    assert "1/k_loss" in found


def test_lists_within_a_dict(make_loop: Any, numbers: Any) -> None:
    net, options = _model({"u": [1, 1], "c": 1}), {"loss": {"u": ["mse", "mae"], "c": "mse"}}
    found = _fit_both(_loop(make_loop, TWO, net, **options), net, _data({"u": (1.0, -1.0), "c": 2.0}, numbers), options)
    assert set(found) == {"loss", "c_loss", "u/d1_loss", "u/d2_loss"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss": {"u": {"a": "mse", "z": "mse"}, "c": "mse"}}, r"losses do not fit .*\['c', 'u/a', 'u/b'\]: \['z'\]"),
        ({"loss": {"u": "mse", "c": "mse"}}, r"one str for \['u/a', 'u/b'\]"),
        ({"loss": "mse", "metrics": {"v": ["mae"]}}, r"metrics do not fit .*\['v'\] beside \['c', 'u'\]"),
        ({"loss": "mse", "loss_weights": {"u": {"q": 1.0}}}, r"loss weights do not fit .*\['q'\]"),
        ({"loss": ["mse", "mse"]}, "losses do not fit"),
    ],
)
def test_nests_that_do_not_fit(options: Any, match: str, make_loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=match):
        _loop(make_loop, TWO, _model(NESTED), **options).fit(_data(FACTORS, numbers), verbose=0)


def test_targets_in_another_nest(make_loop: Any, numbers: Any) -> None:
    loop = _loop(make_loop, TWO, _model(NESTED))
    with pytest.raises(StepError, match=r"targets do not fit the model's outputs \['c', 'u/a', 'u/b'\]"):
        loop.fit(_data({"u": {"a": 1.0, "x": 1.0}, "c": 1.0}, numbers), verbose=0)
    with pytest.raises(StepError, match="no target for the output 'u/b'"):
        loop.fit(_data({"u": {"a": 1.0}, "c": 1.0}, numbers), verbose=0)
