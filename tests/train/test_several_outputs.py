"""Several outputs and inputs, nested ones too: names, losses, weights, metrics and targets as in Keras's fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import needs_keras
from training_helpers import fit_both

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
TWO = ("mirrored", 2)


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


def _data(targets: Any, numbers: Any, weight: Any = None, batch: int = 20) -> tf.data.Dataset:
    """Three batches; `targets` is a nest of the factors of y."""
    x, y = numbers
    parts = (x, keras.tree.map_structure(lambda factor: factor * y, targets))
    return tf.data.Dataset.from_tensor_slices(parts if weight is None else (*parts, weight)).batch(batch)


def _fit_both(make_loop: Any, net: Any, data: Any, compiled: dict[str, Any]) -> Any:
    return fit_both(make_loop, net, data, optimizer=_sgd, **compiled)


def _sgd() -> Any:
    return keras.optimizers.SGD(0.05)


def absolute(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - y_pred), axis=-1)


# One loss for all outputs of a dict: the corpus; crossentropy, of the kind of each output: totals/test_metrics.py.


# --- nested outputs

NESTED = {"u": {"a": 1, "b": 2}, "c": 1}
FACTORS = {"u": {"a": 1.0, "b": 2.0}, "c": -1.0}


def test_nested_dicts(make_loop: Any, numbers: Any) -> None:
    """A loss of each kind, weights, and an output without a loss."""
    options = {
        "loss": {"u": {"a": "mse", "b": None}, "c": absolute},
        "loss_weights": {"u": {"a": 2.0, "b": 0.5}, "c": 0.25},
    }
    found, *_ = _fit_both(make_loop, _model(NESTED), _data(FACTORS, numbers), options)
    assert {"u/a_loss", "c_loss"} <= set(found)


@pytest.mark.slow
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
    found, *_ = _fit_both(make_loop, net, _data(FACTORS, numbers, weight), options)
    assert {"d0_mae", "d1_mae", "d2_mse", "d2_mae", "d1_mse"} <= set(found)  # Keras names a metric by its layer


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"u": {"a": "mse", "z": "mse"}, "c": "mse"}},
        {"loss": {"u": "mse", "c": "mse"}},
        {"loss": "mse", "metrics": {"v": ["mae"]}},
        {"loss": ["mse", "mse"]},
    ],
)
def test_nests_that_do_not_fit(options: Any, make_loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match="Keras cannot compute loss and metrics for this data"):
        make_loop(TWO, _model(NESTED), **options).fit(_data(FACTORS, numbers), verbose=0)


@pytest.mark.slow
def test_losses_of_outputs_where_replicas_run_keras_with_variables(strategy_of: Any, numbers: Any) -> None:
    """The last batch is smaller: in Keras's log of one output all batches count alike."""
    x, _ = numbers
    y = [x[:, :1], x.sum(1, keepdims=True)]

    def model() -> Any:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        hidden = L.SpectralNormalization(L.Dense(3))(inputs)
        net = keras.Model(inputs, [L.Dense(1, name="first")(hidden), L.Dense(1, name="sum")(hidden)])
        net.compile("sgd", ["mse", "mae"], jit_compile=False)
        return net

    expected = model().fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    with strategy_of(*TWO).scope():
        net = model()
    found = mk.fit(net, x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    assert len(x) % 16
    assert {*found} == {"loss", "first_loss", "sum_loss"}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
