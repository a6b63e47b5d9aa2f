"""`ema`: averages of the weights, by Keras's own formula, and a look at the model through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_helpers import cut, numbers_of, train, train_by_hand
from training_helpers import MIRRORED_FAST, keras_twin, largest_difference, line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

_SIZES = [20, 9, 20, 2, 8]  # on three replicas 2 is 1, 1, 0


def _net() -> Any:
    return sequential((4,), L.Dense(5, activation="tanh"), L.Dense(1))


@pytest.mark.parametrize("where", MIRRORED_FAST, ids=str)
@pytest.mark.parametrize("by_step", [True, False], ids=["ema", "Keras's use_ema"])
def test_averages_are_those_of_keras(
    where: Any, by_step: bool, make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    """One device, Keras's optimizer with `use_ema`, the whole batches."""
    ema = {"use_ema": True, "ema_momentum": 0.7}
    loop = make_loop(
        where, _net, lambda: keras.optimizers.Adam(0.05, **({} if by_step else ema)), ema=0.7 if by_step else None
    )
    model, optimizer = keras_twin(_net, loop), keras.optimizers.Adam(0.05, **ema)
    batches = cut(*numbers, sizes=_SIZES)
    train(loop, batches)
    train_by_hand(model, optimizer, batches)
    assert_replicas_equal(loop)
    weights = numbers_of(loop.step.model.trainable_variables)
    assert largest_difference(weights, model.get_weights()) < 1e-6
    last = model.get_weights()
    optimizer.finalize_variable_values(model.trainable_variables)
    assert largest_difference(last, model.get_weights()) > 0.01
    if by_step:
        with loop.step.averaged():
            assert_replicas_equal(loop)
            found = numbers_of(loop.step.model.trainable_variables)
        assert all(map(np.array_equal, weights, numbers_of(loop.step.model.trainable_variables)))
    else:
        loop.step.optimizer.finalize_variable_values(loop.step.model.trainable_variables)
        found = numbers_of(loop.step.model.trainable_variables)
    assert largest_difference(found, model.get_weights()) < 1e-6


def test_within_the_block_everything_sees_the_averages(make_loop: Any, numbers: Any, tmp_path: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, ema=0.5, metrics=["mae"])
    data = plain_dataset(*numbers, batch=20)
    loop.fit(data, verbose=0)
    model = loop.step.model
    before, outside = numbers_of(loop.step.variables), loop.evaluate(data)
    with loop.step.averaged():
        logs, predicted = loop.evaluate(data), loop.predict(data)
        model.save(tmp_path / "averaged.keras")
    averages = before[-4:]
    twin = _net()
    twin.set_weights(averages)
    error = twin.predict(numbers[0], verbose=0) - numbers[1]
    assert logs["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert logs["loss"] != pytest.approx(outside["loss"], rel=1e-3)
    np.testing.assert_allclose(predicted - numbers[1], error, atol=1e-5)
    saved = keras.models.load_model(tmp_path / "averaged.keras").get_weights()
    assert all(map(np.array_equal, saved, averages))
    assert all(map(np.array_equal, before, numbers_of(loop.step.variables)))
    assert loop.evaluate(data) == outside


def test_an_error_in_the_block_brings_the_weights_back(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, ema=0.5)
    train(loop, cut(*numbers, sizes=[30, 30]))
    before = numbers_of(loop.step.variables)

    def fail() -> None:
        assert not all(map(np.array_equal, before, numbers_of(loop.step.variables)))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), loop.step.averaged():
        fail()
    assert all(map(np.array_equal, before, numbers_of(loop.step.variables)))


def test_before_the_first_update_the_averages_are_the_weights(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, ema=0.5)
    model = loop.step.model
    model.set_weights([np.full((4, 1), 3.0), np.array([2.0])])  # loaded after the step was built, say
    with loop.step.averaged():
        np.testing.assert_array_equal(model.get_weights()[0], np.full((4, 1), 3.0))
    np.testing.assert_array_equal(model.get_weights()[0], np.full((4, 1), 3.0))


def test_averages_that_are_not_there(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net)
    with pytest.raises(StepError, match=r"no averages.*ema=0\.999"), loop.step.averaged():
        pass
    step = mk.train.Step(line_net(), keras.optimizers.SGD(), loss="mse", ema=0.9)
    with pytest.raises(StepError, match=r"not built yet"), step.averaged():
        pass


def test_a_block_within_a_block(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, ema=0.5)
    train(loop, cut(*numbers, sizes=[30]))
    with (
        loop.step.averaged(),
        pytest.raises(StepError, match="averages already"),
        loop.step.averaged(),
    ):
        pass


@pytest.mark.parametrize("ema", [0, 1, 1.5, -0.1, float("nan")])
def test_a_decay_out_of_range(ema: float) -> None:
    with pytest.raises(StepError, match="ema must be a decay between 0 and 1"):
        mk.train.Step(line_net(), keras.optimizers.SGD(), loss="mse", ema=ema)


def test_training_within_the_averages_is_refused(make_loop: Any, numbers: Any) -> None:
    """At the end of the block the weights come back, and what was trained on the averages would be gone."""
    loop = make_loop(("one_device", 1), line_net, ema=0.5)
    loop.fit(plain_dataset(*numbers, batch=20), verbose=0)
    with loop.step.averaged(), pytest.raises(StepError, match=r"within step.averaged\(\).*Leave the block"):
        loop.fit(plain_dataset(*numbers, batch=20), verbose=0)
