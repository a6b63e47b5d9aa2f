"""What Keras's models have and a Loop has not: what to use comes in place of Python's error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import largest_difference, line_net, plain_dataset

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


def test_arrays_are_those_of_a_dataset(make_loop: Any, numbers: Any) -> None:
    x, y = numbers
    one, other = (make_loop(("mirrored", 2), line_net) for _ in range(2))
    other.fit(plain_dataset(x, y, batch=20), verbose=0)
    one.fit(x, y, batch_size=20, verbose=0, shuffle=False)
    assert largest_difference(one.step.model.get_weights(), other.step.model.get_weights()) < 1e-6
    np.testing.assert_allclose(one.predict(x), other.predict(plain_dataset(x, batch=20)), rtol=1e-5)
    np.testing.assert_allclose(
        one.evaluate(x, y)["loss"], other.evaluate(plain_dataset(x, y, batch=20))["loss"], rtol=1e-5
    )
