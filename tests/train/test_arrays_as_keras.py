"""Batches larger than the set: as Keras's own fit takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import keras_twin, largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

_RNG = np.random.default_rng(0)
ONE, TWO = _RNG.normal(size=(22, 4)).astype("float32"), _RNG.normal(size=(22, 3)).astype("float32")
UP, DOWN = ONE.sum(1, keepdims=True) + TWO[:, :1], 2 * ONE[:, :1]


def _adam() -> Any:
    return keras.optimizers.Adam(0.05)


def _small_net() -> Any:
    return sequential((4,), L.Dense(4), L.Dense(1, activation="tanh"))


@pytest.mark.parametrize(
    ("where", "make", "examples"),
    [
        (("one_device", 1), mk.data.batches, 22),
        (("mirrored", 2), mk.data.batches, 21),
        (("mirrored", 2), mk.data.resident, 21),
        (("mirrored", 3), mk.data.batches, 22),
        (("mirrored", 3), mk.data.resident, 4),  # one replica gets none
        (("mirrored", 3), mk.data.batches, 2),
    ],
)
def test_a_batch_larger_than_the_set_as_in_keras(where: Any, make: Any, examples: int, make_loop: Any) -> None:
    x, y = ONE[:examples], UP[:examples]
    loop = make_loop(where, _small_net, _adam, metrics=["mae"])
    model = keras_twin(_small_net, loop)
    model.compile(_adam(), "mse", metrics=["mae"])
    expected = model.fit(x, y, batch_size=32, epochs=3, verbose=0, validation_data=(ONE[:5], UP[:5])).history
    data = make(mk.data.arrays(x, y), global_batch_size=32, shuffle=True)
    validation = make(mk.data.arrays(ONE[:5], UP[:5]), global_batch_size=32)
    report = loop.fit(data, epochs=3, validation_data=validation, verbose=0)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(examples, 1)] * 3
    for name, values in expected.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-6, err_msg=name)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-6
    evaluated = loop.evaluate(data)
    for name, value in model.evaluate(x, y, batch_size=32, return_dict=True, verbose=0).items():
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-6, err_msg=name)
    assert largest_difference([loop.predict(validation)], [model.predict(ONE[:5], verbose=0)]) < 1e-6
