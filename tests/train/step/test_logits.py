"""A warning where the model gives logits and the loss takes probabilities, or the other way round."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


@pytest.mark.parametrize(
    ("last", "loss", "cure"),
    [
        (None, "sparse_categorical_crossentropy", r"SparseCategoricalCrossentropy\(from_logits=True\)"),
        (None, keras.losses.BinaryCrossentropy(), r"BinaryCrossentropy\(from_logits=True\)"),
        ("softmax", keras.losses.SparseCategoricalCrossentropy(from_logits=True), "from_logits=False"),
        ("sigmoid", keras.losses.BinaryCrossentropy(from_logits=True), "from_logits=False"),
    ],
)
def test_a_loss_that_takes_logits_for_probabilities_is_named(last: Any, loss: Any, cure: str) -> None:
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, activation=last)])
    with pytest.warns(UserWarning, match=cure):
        mk.train.Step(model, keras.optimizers.SGD(), loss=loss)


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ([L.Dense(3)], keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        ([L.Dense(3, activation="softmax")], "sparse_categorical_crossentropy"),
        ([L.Dense(3), L.Softmax()], "sparse_categorical_crossentropy"),
        ([L.Dense(3), L.Activation("softmax")], "categorical_crossentropy"),
        ([L.Dense(1)], "mse"),
        ([L.Dense(1, activation="sigmoid")], "binary_crossentropy"),
    ],
)
def test_a_loss_that_fits_brings_no_warning(layers: list[Any], loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mk.train.Step(keras.Sequential([keras.Input((4,)), *layers]), keras.optimizers.SGD(), loss=loss)
