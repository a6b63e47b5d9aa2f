"""Weights of examples, masks, users' losses, flat targets: as Keras's own fit on one device; scripts: the corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import fit_both, line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


def _fit_both(make_loop: Any, net: Any, data: Any, *, class_weight: Any = None, **options: Any) -> Any:
    fit = {"validation_data": data, "class_weight": class_weight}
    return fit_both(make_loop, net, data, fit=fit, rtol=1e-5, atol=1e-6, **options)[0]


def _probabilities() -> Any:
    return sequential((4,), L.Dense(3, activation="softmax"))


@pytest.fixture(scope="module")
def classes(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [60, 4] and classes [60]: 0, 1 and 2, unevenly."""
    x, y = numbers
    return x, np.digitize(y[:, 0], [-1.0, 4.0])


def test_weights_of_positions_count_as_in_keras(make_loop: Any) -> None:
    def net() -> Any:
        return sequential((5, 4), L.Dense(3, activation="softmax"))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5, 4)).astype("float32"), rng.integers(0, 3, (30, 5))
    split = mk.data.arrays(x, y, sample_weight=rng.uniform(0, 2, (30, 5)))
    data = mk.data.batches(split, global_batch_size=20).dataset()  # the last batch is a smaller one
    options = {"loss": "sparse_categorical_crossentropy", "weighted_metrics": ["accuracy"]}
    _fit_both(make_loop, net, data, where=("mirrored", 3), **options)


def test_class_weights_of_real_targets_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    targets = np.linspace(-0.4, 2.4, len(classes[1]), dtype=np.float32)
    targets[:3] = 0.5, 1.5, 2.5  # rounded half to even
    data = plain_dataset(classes[0], targets[:, None], batch=30)
    _fit_both(make_loop, line_net, data, loss="mse", class_weight={0: 0.5, 1: 3.0, 2: 0.0})


@pytest.mark.parametrize("one_hot", [None, "int64"])
def test_class_weights_leave_other_classes_at_one(one_hot: str | None, make_loop: Any, classes: Any) -> None:
    x, y = classes
    loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    loop = make_loop(("one_device", 1), _probabilities, loss=loss)
    before = loop.step.model(x).numpy()
    data = plain_dataset(x, np.eye(3, dtype=one_hot)[y] if one_hot else y, batch=60)
    history = loop.fit(data, class_weight={1: 3.0}, verbose=0).history
    crossentropy = -np.log(before[np.arange(60), y])
    np.testing.assert_allclose(history["loss"][0], np.mean(crossentropy * np.where(y == 1, 3, 1)), rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_a_sum_over_the_batch(accumulate: int, make_loop: Any, numbers: Any) -> None:
    data, options = plain_dataset(*numbers, batch=25), {"loss": keras.losses.MeanSquaredError(reduction="sum")}
    sgd = lambda: keras.optimizers.SGD(0.001)  # noqa: E731
    if accumulate == 1:
        _fit_both(make_loop, line_net, data, where=("mirrored", 3), optimizer=sgd, **options)
        return
    with pytest.raises(StepError, match=r"reduction='sum'.*size of the batch"):
        make_loop(("one_device", 1), line_net, sgd, accumulate=2, **options).fit(data, verbose=0)


# --- targets and outputs without an axis of their own, [batch]: as in Keras's fit, or refused


def _net() -> Any:
    return sequential((4,), L.Dense(3, activation="tanh"), L.Dense(1), L.Reshape(()))


def _probability() -> Any:
    return sequential((4,), L.Dense(1, activation="sigmoid"), L.Reshape(()))


@pytest.mark.slow
def test_a_loss_that_is_no_mean_over_the_batch(make_loop: Any, numbers: Any) -> None:
    def root(y: Any, y_pred: Any) -> Any:
        return keras.ops.sqrt(keras.ops.mean((y - y_pred) ** 2, axis=-1))

    data = plain_dataset(numbers[0], (numbers[1][:, 0] > 0).astype("float32"), batch=20)
    with pytest.raises(StepError, match=r"The loss \(root\) .*one value per example"):
        make_loop(("mirrored", 2), _probability, loss=root).fit(data, verbose=0)
    fit_both(make_loop, _probability, data, where=("one_device", 1), loss=root)


def test_weights_of_examples(make_loop: Any, numbers: Any) -> None:
    weight = np.linspace(0, 2, 60).astype("float32")
    data = plain_dataset(numbers[0], numbers[1][:, 0], weight, batch=20)
    with pytest.raises(StepError, match=r"mean_squared_error.*\[batch, 1\]"):
        make_loop(("mirrored", 2), _net).fit(data, verbose=0)


@pytest.mark.slow
def test_a_metric_that_is_one_number_for_a_batch(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], numbers[1][:, 0], batch=25)
    fit_both(make_loop, _net, data, fit={"validation_data": data}, metrics=["mae"])
