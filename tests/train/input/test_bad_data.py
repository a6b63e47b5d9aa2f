"""Data and arguments that fit and evaluate refuse: a StepError that says what to do, and nothing is trained."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


@pytest.fixture(scope="module")
def loop(make_loop: Any) -> mk.train.Loop:
    """A sound loop, to be given bad data; nothing here should get as far as training."""
    return make_loop(("mirrored", 2), lambda: sequential((4,), L.Dense(3), L.Dense(1)), metrics=["mae"])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x, y: (x, "text"), r"mk\.data\.batches.*found tuple"),
        (lambda x, y: mk.data.arrays(x, y), r"mk\.data\.batches.*found Split"),
        (lambda x, y: plain_dataset(x, y, batch=30).take(0), "empty.*drop_remainder"),
        (lambda x, y: plain_dataset(x, y, batch=30).filter(lambda x, y: False), "no batch.*filters"),
        (lambda x, y: plain_dataset(x, y, batch=30).repeat(), "never ends.*steps"),
        (lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)), r"single examples.*dataset\.batch"),
        (
            lambda x, y: tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_types=(tf.float32, tf.float32)),
            r"rank.*output_signature",
        ),
        (lambda x, y: plain_dataset(x, y, batch=30).window(2), r"datasets.*flat_map"),
        (lambda x, y: plain_dataset(x, y, batch=30).map(lambda *e: tf.experimental.Optional.from_value(e)), "Optional"),
        (lambda x, y: tf.data.Dataset.from_tensors((tf.sparse.from_dense(x), y)), "yields SparseTensors.*to_dense"),
        (lambda x, y: tf.data.Dataset.from_tensors((x, tf.RaggedTensor.from_tensor(y))), "RaggedTensors.*to_tensor"),
        (lambda x, y: tf.data.Dataset.from_tensors((x, y[:1])), r"\[0\] has 60, component \[1\] has 1\."),
        (lambda x, y: tf.data.Dataset.from_tensors((x, y, y[:20, 0])), r"component \[2\] has 20\."),
    ],
    ids=[
        *("tuple", "split", "empty", "filtered", "endless", "unbatched"),
        *("no rank", "windows", "optionals", "sparse", "ragged", "one target", "fewer weights"),
    ],
)
def test_data_that_is_none(make: Any, match: str, loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=match):
        loop.fit(make(*numbers))
    assert int(loop.step.optimizer.iterations.numpy()) == 0


def test_predictions_for_what_replicas_cannot_cut(loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=r"RaggedTensors; a step takes dense tensors"):
        loop.predict(tf.data.Dataset.from_tensors(tf.RaggedTensor.from_tensor(numbers[0])))


def test_empty_data_with_a_number_of_steps_ends(loop: Any, numbers: Any) -> None:
    """Repeated for ever, an empty dataset could keep the loop waiting."""
    nothing = plain_dataset(*numbers, batch=30).filter(lambda x, y: False)
    with pytest.raises(StepError, match="no batch"):
        loop.fit(nothing, steps_per_epoch=2, verbose=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps_per_epoch": 0}, "steps.*found 0"),
        ({"validation_freq": 0}, "validation_freq.*from 1 on"),
        ({"validation_freq": [1, 0]}, r"validation_freq.*found \[1, 0\]"),
        ({"verbose": "loud"}, "verbose.*found 'loud'"),
        ({"class_weight": {"cat": 1.0}}, "class_weight.*whole numbers"),
    ],
)
def test_arguments_of_fit(options: Any, match: str, loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=match):
        loop.fit(plain_dataset(*numbers, batch=30), **{"verbose": 0, **options})


def test_class_weights_beside_sample_weights(loop: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, np.ones(60, "float32"), batch=30)
    with pytest.raises(StepError, match=r"sample weights.*multiply"):
        loop.fit(data, class_weight={0: 2.0}, verbose=0)


def test_a_class_weight_without_a_class(loop: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match=r"maps class indices .*10{12}"):
        loop.fit(plain_dataset(*numbers, batch=30), class_weight={10**12: 2.0}, verbose=0)  # 4 TB of weights


def test_class_weights_of_positions(make_loop: Any, numbers: Any) -> None:
    net = lambda: sequential((4,), L.Dense(15), L.Reshape((5, 3)), L.Softmax())  # noqa: E731
    data = plain_dataset(numbers[0], np.zeros((60, 5), "int64"), batch=30)
    with pytest.raises(StepError, match=r"class_weight .*\(None, 5"):
        make_loop(("mirrored", 2), net, loss="ce").fit(data, class_weight={0: 2.0}, verbose=0)


def test_a_call_length_that_is_none(loop: Any) -> None:
    with pytest.raises(StepError, match="steps_per_call must be"):
        mk.train.Loop(loop.strategy, loop.step, steps_per_call="fast")


def test_whole_numbers_may_be_numpys(loop: Any, numbers: Any) -> None:
    found = mk.train.Loop(loop.strategy, loop.step, steps_per_call=np.int64(5)).steps_per_call
    assert (type(found), found) == (int, 5)
    data = plain_dataset(*numbers, batch=20)
    loop.fit(data, epochs=np.int64(2), steps_per_epoch=np.int64(1), verbose=0)
    assert loop.step.optimizer.iterations.numpy() == 2
    zeros = plain_dataset(numbers[0], np.zeros_like(numbers[1]), batch=60)
    loop.fit(zeros, class_weight=dict.fromkeys(np.arange(3), 1.0), verbose=0)
    assert loop.step.optimizer.iterations.numpy() == 3


def test_what_is_no_step(loop: Any) -> None:
    class Half:
        def compute(self, batch: Any) -> Any:
            return batch

    with pytest.raises(StepError, match="lacks build, update"):
        mk.train.Loop(loop.strategy, Half())


def test_an_uneven_global_batch_brings_one_warning(numbers: Any, strategy_of: Any) -> None:
    from mirrorkit.train.input.input import Input

    data = tf.data.Dataset.from_tensor_slices(numbers).batch(27, drop_remainder=True)
    with pytest.warns(UserWarning, match=r"27 examples.*7, 7, 7, 6.*24 or 28"):
        Input(strategy_of("mirrored", 4), data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Input(strategy_of("mirrored", 4), data)
