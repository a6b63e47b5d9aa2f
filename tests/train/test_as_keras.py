"""Weights of examples, masks, several outputs, users' losses: as Keras's own fit and evaluate on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import keras_twin, largest_difference, line_net, linear, plain_dataset, sequential

from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _fit_both(loop: Any, model: Any, data: Any, *, tolerance: float = 1e-5, **options: Any) -> tuple[Any, Any]:
    """Train both; histories and weights must agree. Then evaluate both."""
    expected = model.fit(data, epochs=2, verbose=0, **options).history
    found = loop.fit(data, epochs=2, verbose=0, **options).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=tolerance, atol=1e-6, err_msg=name)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < tolerance
    evaluated = loop.evaluate(data)
    for name, value in model.evaluate(data, return_dict=True, verbose=0).items():
        np.testing.assert_allclose(evaluated[name], value, rtol=tolerance, atol=1e-6, err_msg=name)
    return found, expected


def _probabilities() -> Any:
    return sequential((4,), L.Dense(3, activation="softmax"))


@pytest.fixture(scope="module")
def classes(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [60, 4] and classes [60]: 0, 1 and 2, unevenly."""
    x, y = numbers
    return x, np.digitize(y[:, 0], [-1.0, 4.0])


def test_sample_weights_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    x, y = classes
    weight = np.linspace(0, 3, 60).astype("float32")
    options = {
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        "weighted_metrics": ["accuracy", "sparse_categorical_crossentropy"],
    }
    loop = make_loop(("mirrored", 2), _probabilities, **options)
    model = keras_twin(_probabilities, loop)
    model.compile(keras.optimizers.SGD(0.1), **options)
    found, _ = _fit_both(loop, model, plain_dataset(x, y, weight, batch=20))
    assert "weighted_accuracy" in found
    assert found["weighted_accuracy"] != found["accuracy"]


def test_class_weights_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    loop = make_loop(("mirrored", 2), _probabilities, loss="sparse_categorical_crossentropy")
    model = keras_twin(_probabilities, loop)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    _fit_both(loop, model, plain_dataset(*classes, batch=30), class_weight={0: 0.5, 1: 2.0, 2: 0.0})


def test_class_weights_of_real_targets_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    targets = np.linspace(-0.4, 2.4, len(classes[1]), dtype=np.float32)
    targets[:3] = 0.5, 1.5, 2.5  # rounded half to even

    def net() -> Any:
        return sequential((4,), L.Dense(1))

    loop = make_loop(("mirrored", 2), net, loss="mse")
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    _fit_both(loop, model, plain_dataset(classes[0], targets[:, None], batch=30), class_weight={0: 0.5, 1: 3.0, 2: 0.0})


@pytest.mark.parametrize("one_hot", [None, "float32", "int64"])
def test_class_weights_leave_other_classes_at_one(one_hot: str | None, make_loop: Any, classes: Any) -> None:
    x, y = classes
    loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    loop = make_loop(("one_device", 1), _probabilities, loss=loss)
    before = loop.step.model(x).numpy()
    data = plain_dataset(x, np.eye(3, dtype=one_hot)[y] if one_hot else y, batch=60)
    history = loop.fit(data, class_weight={1: 3.0}, verbose=0).history
    crossentropy = -np.log(before[np.arange(60), y])
    np.testing.assert_allclose(history["loss"][0], np.mean(crossentropy * np.where(y == 1, 3, 1)), rtol=1e-5)


@pytest.mark.slow  # fast: test_several_outputs.py
def test_several_outputs_as_in_keras(make_loop: Any, numbers: Any, classes: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        hidden = L.Dense(4, activation="tanh")(inputs)
        return keras.Model(
            inputs, {"size": L.Dense(1, name="size")(hidden), "kind": L.Dense(3, "softmax", name="kind")(hidden)}
        )

    options = {
        "loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        "loss_weights": {"kind": 2.0, "size": 0.1},
        "metrics": {"kind": ["accuracy"], "size": ["mae", "mse"]},
    }
    loop = make_loop(("mirrored", 2), net, **options)
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), **options)
    data = plain_dataset(numbers[0], {"kind": classes[1], "size": numbers[1]}, batch=30)
    found, _ = _fit_both(loop, model, data)
    assert set(found) == {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae", "size_mse"}
    outputs, expected = loop.predict(data), model.predict(numbers[0], verbose=0)
    assert outputs.keys() == expected.keys()
    for name in outputs:
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)


@pytest.mark.slow  # fast: test_several_outputs.py, and dicts of inputs in test_arrays_as_keras.py
def test_a_list_of_outputs_as_in_keras(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
        joined = L.Concatenate()([inputs["a"], inputs["b"]])
        return keras.Model(inputs, [L.Dense(1, name="up")(joined), L.Dense(1, name="down")(joined)])

    x, y = numbers
    loop = make_loop(("mirrored", 2), net, loss=["mse", "mae"], metrics=[["mae"], []])
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), loss=["mse", "mae"], metrics=[["mae"], []])
    data = tf.data.Dataset.from_tensor_slices(({"a": x, "b": x[::-1]}, (y, -y))).batch(30)
    found, _ = _fit_both(loop, model, data)
    assert set(found) == {"loss", "up_loss", "down_loss", "up_mae"}


def _reader() -> Any:
    return sequential((6,), L.Embedding(5, 4, mask_zero=True), L.Dense(3, activation="tanh"), L.Dense(1))


@pytest.mark.parametrize(("reduction", "weighted"), [("sum_over_batch_size", False), ("mean_with_sample_weight", True)])
def test_masked_steps_do_not_count(reduction: str, weighted: bool, make_loop: Any) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, (24, 6))
    tokens[np.arange(6)[None] >= rng.integers(1, 7, 24)[:, None]] = 0  # the replicas get different numbers of tokens
    y = rng.normal(size=(24, 6, 1)).astype("float32")
    weight = [rng.uniform(0, 2, (24, 6)).astype("float32")] if weighted else []
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    loop = make_loop(("mirrored", 2), _reader, loss=loss, metrics=["mae"])
    model = keras_twin(_reader, loop)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
    _fit_both(loop, model, plain_dataset(tokens, y, *weight, batch=24))


def test_mean_with_sample_weight_divides_by_the_weights(make_loop: Any, numbers: Any) -> None:
    weight = np.linspace(0, 3, 60).astype("float32")
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    loop = make_loop(("mirrored", 2), line_net, loss=loss)
    error = linear(loop.step.model.get_weights(), numbers[0]) - numbers[1]
    logs = loop.evaluate(plain_dataset(*numbers, weight, batch=25))
    assert logs["loss"] == pytest.approx(np.sum(weight[:, None] * error**2) / np.sum(weight), rel=1e-5)


@pytest.mark.parametrize("flat", [False, True], ids=["y [B, 1]", "y [B]"])
def test_a_users_loss_function_sees_what_keras_shows_it(flat: bool, make_loop: Any, numbers: Any) -> None:
    @keras.saving.register_keras_serializable("tests")
    def half_square(y: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y - y_pred) / 2, axis=-1)

    x, y = numbers
    y = np.round(y).astype("int64")  # cast to float before it gets there
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), L.Dense(1)), loss=half_square)
    model = keras_twin(lambda: sequential((4,), L.Dense(1)), loop)
    model.compile(keras.optimizers.SGD(0.1), half_square)
    _fit_both(loop, model, plain_dataset(x, y[:, 0] if flat else y, batch=30))


def test_a_model_whose_call_takes_no_training_argument(make_loop: Any, numbers: Any) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = L.Dense(3, activation="tanh"), L.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

    def net() -> Any:
        model = Own()
        model(np.zeros((1, 4), "float32"))
        return model

    loop = make_loop(("mirrored", 2), net)
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = plain_dataset(*numbers, batch=30)
    _fit_both(loop, model, data)
    np.testing.assert_allclose(loop.predict(data), model.predict(numbers[0], verbose=0), atol=1e-5)
