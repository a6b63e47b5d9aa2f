"""What Keras's models have and a Loop has not: what to use comes in place of Python's error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import largest_difference, plain_dataset, set_values, values_of

from mirrorkit.errors import StepError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


@pytest.mark.parametrize(("option", "match"), [("workers", "tf.data"), ("max_queue_size", "tf.data")])
def test_arguments_that_are_gone(option: str, match: str, line: Any) -> None:
    with pytest.raises(StepError, match=rf"{option}\. {match}"):
        line.fit(plain_dataset(X, Y, batch=4), **{option: 2})


def test_other_arguments_are_left_to_python(line: Any) -> None:
    with pytest.raises(TypeError, match="'Y'"):
        line.fit(X, Y=Y)


def test_methods_that_a_loop_has_not(line: Any) -> None:
    with pytest.raises(AttributeError, match=r"train_on_batch.*step\.compute"):
        line.train_on_batch(X, Y)
    with pytest.raises(AttributeError, match="'fits'"):
        line.fits(X)


def test_arrays_are_those_of_a_dataset(line: Any, numbers: Any) -> None:
    x, y = numbers
    start = values_of(line)
    line.fit(plain_dataset(x, y, batch=20), verbose=0)
    expected = values_of(line)
    set_values(line, start)
    line.fit(x, y, batch_size=20, verbose=0, shuffle=False)
    assert largest_difference(values_of(line), expected) < 1e-6
    np.testing.assert_allclose(line.predict(x), line.predict(plain_dataset(x, batch=20)), rtol=1e-5)
    of_dataset = line.evaluate(plain_dataset(x, y, batch=20))
    np.testing.assert_allclose(line.evaluate(x, y)["loss"], of_dataset["loss"], rtol=1e-5)
