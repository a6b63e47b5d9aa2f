"""Exact evaluation and prediction in order; and what a Loop says in place of Keras's arguments and methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import line_net, linear, plain_dataset, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


# --- every example counts once, on any number of replicas: the corpus, and train/test_equivalence.py


def test_small_losses_are_not_lost_beside_large_ones(fixed_line: Any) -> None:
    """A running mean in float32 would lose the ones: 2**25 + 1 is not a float32."""
    loop = fixed_line(("mirrored", 2))
    weights = loop.step.model.get_weights()
    y = np.array([4096.0] * 2 + [1.0] * 50, "float32")[:, None] + weights[1]
    logs = loop.evaluate(plain_dataset(np.zeros((52, 4), "float32"), y, batch=1))
    assert logs["loss"] == pytest.approx((2**25 + 50) / 52, rel=2e-7)


def test_predict_takes_inputs_alone_and_pads_nothing(fixed_line: Any, numbers: Any) -> None:
    """One example for two replicas, and 37 in batches of 8."""
    loop = fixed_line(("central_storage", 2))
    for examples in (1, 37):
        x = numbers[0][:examples]
        found = loop.predict(tf.data.Dataset.from_tensor_slices(x).batch(8))
        assert (found.shape, found.dtype) == ((examples, 1), np.float32)
        np.testing.assert_allclose(found, linear(loop.step.model.get_weights(), x), rtol=1e-5, atol=1e-5)
    endless = tf.data.Dataset.from_tensor_slices(x).batch(4).repeat()
    assert len(loop.predict(endless, steps=3)) == 12


def test_a_callback_ends_an_evaluation(fixed_line: Any, numbers: Any) -> None:
    """As in Keras, and the next one is whole."""
    loop = fixed_line(("one_device", 1))
    ended: list[int] = []

    def stop(batch: int, logs: Any = None) -> None:
        ended.append(batch)
        loop.step.model.stop_evaluating = True

    data = plain_dataset(*numbers, batch=12)
    logs = loop.evaluate(data, callbacks=[keras.callbacks.LambdaCallback(on_test_batch_end=stop)])
    (last,) = ended
    assert last < 4
    assert logs == loop.evaluate(plain_dataset(*(array[: 12 * (last + 1)] for array in numbers), batch=12))
    assert logs != loop.evaluate(data)


@pytest.mark.parametrize("first", [True, False])
def test_an_output_that_is_one_number_is_named(first: bool, make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        x = keras.Input((4,))
        outputs = [L.Dense(1)(x), L.Lambda(keras.ops.mean)(x)]
        return keras.Model(x, outputs[::-1] if first else outputs)

    with pytest.raises(StepError, match=r"one number for a batch.*return tensors \[rows, \.\.\.\]"):
        make_loop(("one_device", 1), net).predict(numbers[0])


def test_complex_outputs_are_compared_up_to_rounding(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        x = keras.Input((4,))
        return keras.Model(x, L.Lambda(lambda y: tf.signal.fft(tf.cast(y, tf.complex64)))(L.Dense(16)(x)))

    loop = make_loop(("mirrored", 2), net)
    found = loop.predict(numbers[0])
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, loop.step.model(numbers[0]), atol=1e-5)


def test_outputs_that_are_not_one_array_are_named(make_loop: Any) -> None:
    def sequences() -> Any:
        for length in (5, 7):
            yield np.ones((8, length, 3), "float32")

    data = tf.data.Dataset.from_generator(sequences, output_signature=tf.TensorSpec([None, None, 3]))
    loop = make_loop(("mirrored", 2), lambda: sequential((None, 3), L.Dense(2)))
    with pytest.raises(StepError, match=r"\[None, 5, 2\] .*\[None, 7, 2\]"):
        loop.predict(data)
    assert loop.predict(data.skip(1).take(1)).shape == (8, 7, 2)


class StopsAfter(keras.callbacks.Callback):
    """Ends each evaluation after so many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = batch + 1 == self.batches


def test_a_hook_of_a_user_s_own_comes_after_each_batch(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, steps_per_call="auto")
    data = plain_dataset(*numbers, batch=10)
    loop.fit(data, epochs=4, verbose=0)  # from which it learns that a call may be of many steps
    expected = loop.evaluate(data, steps=2)
    assert loop.evaluate(data, callbacks=[StopsAfter(2)]) == expected != loop.evaluate(data)
