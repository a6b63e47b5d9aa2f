"""Arrays in tuples and dicts, none as labels, and batches larger than the set: as Keras's own fit takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import keras_twin, largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

_RNG = np.random.default_rng(0)
ONE, TWO = _RNG.normal(size=(22, 4)).astype("float32"), _RNG.normal(size=(22, 3)).astype("float32")
UP, DOWN = ONE.sum(1, keepdims=True) + TWO[:, :1], 2 * ONE[:, :1]


def _inside_each_other() -> Any:
    one, two, three = (keras.Input((size,), name=name) for size, name in ((4, "one"), (3, "two"), (1, "three")))
    joined = L.Concatenate()([one, two, three])
    return keras.Model({"a": (one, two), "b": three}, L.Dense(1, name="up")(joined))


def _adam() -> Any:
    return keras.optimizers.Adam(0.05)


NESTED = {"b": DOWN, "a": (ONE, TWO)}


def test_nested_inputs_train_as_in_keras(make_loop: Any) -> None:
    """Dicts of inputs and of outputs: a row of the table of equivalence, and the corpus."""
    loop = make_loop(("mirrored", 2), _inside_each_other, _adam)
    model = keras_twin(_inside_each_other, loop)
    model.compile(_adam(), "mse")
    expected = model.fit(NESTED, UP, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    data = mk.data.resident(mk.data.arrays(NESTED, UP), global_batch_size=8)
    found = loop.fit(data, epochs=2, verbose=0).history
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-6
    unlabelled = mk.data.batches(mk.data.arrays(NESTED), global_batch_size=8)
    assert largest_difference([loop.predict(unlabelled)], [model.predict(NESTED, verbose=0)]) < 1e-6


def test_keras_fit_takes_the_datasets() -> None:
    one, other = _inside_each_other(), _inside_each_other()
    other.set_weights(one.get_weights())
    data = mk.data.batches(mk.data.arrays(NESTED, UP), global_batch_size=8)
    for model, given in ((one, {"x": NESTED, "y": UP, "batch_size": 8}), (other, {"x": data.dataset()})):
        model.compile(_adam(), "mse")
        model.fit(**given, shuffle=False, verbose=0)
    assert largest_difference(one.get_weights(), other.get_weights()) == 0
    unlabelled = mk.data.batches(mk.data.arrays(NESTED), global_batch_size=8).dataset()
    found, wanted = other.predict(unlabelled, verbose=0), one.predict(NESTED, batch_size=8, verbose=0)
    np.testing.assert_array_equal(np.array(found), np.array(wanted))


def test_a_set_without_labels_is_no_target_of_a_loss(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), _small_net)
    data = mk.data.batches(mk.data.arrays(ONE), global_batch_size=8)
    for call in (loop.fit, loop.evaluate):
        with pytest.raises(StepError, match="no target"):
            call(data)


def _small_net() -> Any:
    return sequential((4,), L.Dense(1, activation="tanh"))


def test_a_batch_larger_than_the_set_as_in_keras(make_loop: Any) -> None:
    x, y = ONE[:2], UP[:2]  # one of three replicas gets none
    loop = make_loop(("mirrored", 3), _small_net, _adam, metrics=["mae"])
    model = keras_twin(_small_net, loop)
    model.compile(_adam(), "mse", metrics=["mae"])
    expected = model.fit(x, y, batch_size=32, epochs=3, verbose=0, validation_data=(ONE[:5], UP[:5])).history
    data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=32, shuffle=True)
    validation = mk.data.batches(mk.data.arrays(ONE[:5], UP[:5]), global_batch_size=32)
    report = loop.fit(data, epochs=3, validation_data=validation, verbose=0)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(2, 1)] * 3
    for name, values in expected.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-6, err_msg=name)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-6
    assert largest_difference([loop.predict(validation)], [model.predict(ONE[:5], verbose=0)]) < 1e-6
