"""Datasets in forms that are not everyday: of several datasets, with None, and waiting when a script ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import assert_same_logs, keras_twin, line_net, plain_dataset, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import HostIterator

# --- datasets of several datasets, whose shapes TensorFlow does not know in its kernels, train as in `fit`


_X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
_SET = tf.data.Dataset.from_tensor_slices((_X, _X[:, :1]))
_TWICE = tf.data.Dataset.range(2).repeat(60)

FORMS: dict[str, Callable[[], tf.data.Dataset]] = {
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([_SET, _SET], [0.5, 0.5], seed=1).batch(12),
    "chosen batches": lambda: tf.data.Dataset.choose_from_datasets([_SET.batch(12), _SET.batch(12)], _TWICE),
}


def _compiled() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_it_trains_as_in_fit(form: str, strategy_of: Any) -> None:
    expected, data = _compiled(), FORMS[form]()
    expected.fit(data, verbose=0)
    strategy = strategy_of("mirrored", 3)
    with strategy.scope():
        model = _compiled()
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    loop.fit(data, steps_per_epoch=10, validation_data=data, validation_steps=10, verbose=0)
    for want, found in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["ragged", "sparse", "dict"])
def test_batches_that_were_looked_at_are_as_they_were(kind: str) -> None:
    rows = {
        "ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]),
        "sparse": (tf.sparse.from_dense(np.eye(3)), np.arange(3)),
        "dict": {"a": np.arange(3), "b": np.zeros([3, 2])},
    }[kind]
    data = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    iterator = HostIterator(data, steps=None, size_of=lambda batch: None)
    iterator.look_at(2)
    assert iterator.source.element_spec == data.element_spec
    for number, expected in enumerate(data):
        found = iterator.read(number)
        parts = [tf.nest.flatten(nest, expand_composites=True) for nest in (found, expected)]
        for one, other in zip(*parts, strict=True):
            np.testing.assert_array_equal(one, other)
    assert iterator.read(2) is None


# --- batches that end in None, which Keras takes for targets and sample weights that are not there


def _unweighted(x: Any, y: Any) -> Any:
    return x, y, None


def test_no_sample_weights(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, metrics=["mae"], weighted_metrics=["mse"])
    first, theirs = values_of(loop), plain_dataset(*numbers, batch=20).map(_unweighted)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mse"])
    expected = model.fit(theirs, epochs=2, validation_data=theirs, verbose=0).history
    outputs = model.predict(numbers[0], verbose=0)
    for ours in (theirs, mk.data.resident(mk.data.arrays(*numbers), global_batch_size=20, map=_unweighted)):
        set_values(loop, first)
        loop.warm_up(ours)
        found = loop.fit(ours, epochs=2, validation_data=ours, verbose=0, callbacks=[mk.checks.NanWatch()]).history
        assert_same_logs(found, expected, rtol=1e-5)
        np.testing.assert_allclose(loop.predict(ours), outputs, rtol=1e-4, atol=1e-5)


def test_no_targets_to_predict(line: Any, numbers: Any) -> None:
    plain = plain_dataset(numbers[0], batch=20)
    expected = line.predict(plain)
    for batches in (plain.map(lambda x: (x, None)), plain.map(lambda x: (x, None, None))):
        np.testing.assert_array_equal(line.predict(batches), expected)


def test_class_weights(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], np.zeros([60, 1], "int64"), batch=20)
    make_loop(("mirrored", 2), line_net).fit(data.map(_unweighted), class_weight={0: 2.0}, verbose=0)


def test_a_custom_loop_and_a_check(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, batch=20).map(_unweighted)
    loop = make_loop(("mirrored", 2), line_net)
    assert [len(batch) for batch in mk.data.distribute(data, loop.strategy)] == [2, 2, 2]
    assert mk.checks.find_non_finite(loop, next(iter(data))) is None


@pytest.mark.parametrize(
    "spoil", [lambda x, y: (x, None, y[:, 0]), lambda x, y: ({"a": x, "b": None}, y)], ids=["targets", "inputs"]
)
def test_none_elsewhere_is_refused_by_name(spoil: Any, line: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match="may end in None"):
        line.fit(plain_dataset(*numbers, batch=20).map(spoil))


# --- A script ends although tf.data is waiting for an element from Python


ITEMS = """
import time

import numpy as np


class Slow:
    def __len__(self):
        return 2400

    def __getitem__(self, number):
        time.sleep(0.01)
        return np.ones(8, "float32"), 1


def generated():
    for number in range(2400):
        yield Slow()[number]
"""
SCRIPT = """
import keras
import slow_items
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("one_device", devices="cpu:1")
with strategy.scope():
    model, optimizer = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]), keras.optimizers.SGD(0.1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=1)
spec = tf.TensorSpec((8,)), tf.TensorSpec((), tf.int64)
generator = tf.data.Dataset.from_generator(slow_items.generated, output_signature=spec).batch(12).prefetch(3)
loop.fit(generator, steps_per_epoch=3, verbose=0)
served = mk.data.source(slow_items.Slow(), global_batch_size=12, processes=2)
loop.fit(served, steps_per_epoch=3, verbose=0)
print("trained", flush=True)
"""


@pytest.mark.slow
def test_with_batches_under_way(tmp_path: Path, run_python: Any) -> None:
    """Of a generator, and of processes that serve items."""
    (tmp_path / "slow_items.py").write_text(ITEMS)
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r})\n{SCRIPT}", timeout=60)
    assert done.stdout.split()[-1] == "trained"
