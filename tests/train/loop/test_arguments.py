"""Calls as of Keras's fit, evaluate and predict, with arrays: what to write comes in place of a TypeError."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import keras_twin, line_net, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
SET = r"mk\.data\.batches\(mk\.data\.arrays\(x, y\), global_batch_size=256"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda loop: loop.fit(X, Y), rf"Loop\.fit .*found ndarray, ndarray\. .*{SET}, shuffle=True\); loop\.fit"),
        (lambda loop: loop.fit(x=X, y=Y, epochs=2), rf"found x=ndarray, y=ndarray\. .*{SET}"),
        (lambda loop: loop.fit(x=plain_dataset(X, Y, batch=4)), r"found x=_BatchDataset\. .*loop\.fit"),
        (lambda loop: loop.fit(plain_dataset(X, Y, batch=4), 5), r"found _BatchDataset, 5\. .*loop\.fit"),
        (lambda loop: loop.fit(plain_dataset(X, Y, batch=4), batch_size=4), r"batch_size: .*dataset\.batch"),
        (lambda loop: loop.fit(plain_dataset(X, Y, batch=4), validation_split=0.2), "Split the arrays"),
        (lambda loop: loop.evaluate(X, Y), rf"Loop\.evaluate .*found ndarray, ndarray\. .*{SET}\); loop\.evaluate"),
        (lambda loop: loop.evaluate(plain_dataset(X, Y, batch=4), return_dict=True), "always returns a dict"),
        (lambda loop: loop.predict(X), r"found ndarray\. .*from_tensor_slices\(x\)\.batch\(256\); loop\.predict"),
        (lambda loop: loop.predict(X, batch_size=2), r"from_tensor_slices\(x\)\.batch\(2\)"),
    ],
)
def test_what_to_write_instead(call: Callable[[Any], Any], match: str, line: Any) -> None:
    before = line.step.model.get_weights()
    with pytest.raises(StepError, match=match):
        call(line)
    np.testing.assert_array_equal(line.step.model.get_weights()[0], before[0])


def test_what_is_told_trains_as_keras_does(make_loop: Any, numbers: Any) -> None:
    """The line of the message, copied: as Keras with these arrays, but for the order of the examples."""
    x, y = numbers
    loop = make_loop(("mirrored", 2), line_net)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(StepError) as refused:
        loop.fit(x, y, batch_size=60)
    made = re.search(r"data = (mk\.data\.batches\(.*\)); loop\.fit\(data\)", str(refused.value))
    assert made is not None
    found = loop.fit(eval(made[1], {"mk": mk, "x": x, "y": y}), epochs=3, verbose=0).history["loss"]
    expected = model.fit(x, y, batch_size=60, epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(StepError) as refused:
        loop.predict(x, batch_size=20)
    made = re.search(r"data = (.*); loop\.predict\(data\)", str(refused.value))
    assert made is not None
    outputs = loop.predict(eval(made[1], {"tf": tf, "x": x}))
    np.testing.assert_allclose(outputs, model.predict(x, verbose=0), atol=1e-5)


def test_what_keras_does_not_take_either_is_left_to_python(line: Any) -> None:
    with pytest.raises(TypeError, match="workers"):
        line.fit(plain_dataset(X, Y, batch=4), workers=2)


def test_the_methods_show_their_own_arguments() -> None:
    assert list(inspect.signature(mk.train.Loop.fit).parameters)[:3] == ["self", "data", "epochs"]
    assert list(inspect.signature(mk.train.Loop.predict).parameters) == ["self", "data", "steps"]
    assert "initial_epoch" in (mk.train.Loop.fit.__doc__ or "")
