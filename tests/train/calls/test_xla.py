"""Step(jit_compile=True): what XLA cannot compile is named, and whole calls are compiled once.

That they give the same result: test_xla_by_default.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers


def _net() -> Any:
    return sequential((4,), L.Dense(8, activation="relu"), L.BatchNormalization(), L.Dense(5))


def test_a_layer_that_xla_cannot_compile_is_named(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,), dtype="int64")
        table = L.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot")
        return keras.Model(inputs, L.Dense(1)(table(inputs)))

    data = mk.data.arrays(np.ones((24, 4), "int64"), np.ones((24, 1), "float32"))
    recipe = mk.data.resident(data, global_batch_size=12)
    make_loop(("one_device", 1), net).fit(recipe, verbose=0)
    with pytest.raises(StepError, match=r"XLA cannot compile .*jit_compile=False"):
        make_loop(("one_device", 1), net, jit_compile=True).fit(recipe, verbose=0)


class Repeated(L.Layer):
    def call(self, x: Any) -> Any:
        times = tf.cast(tf.reduce_sum(tf.stop_gradient(x)) * 0, tf.int32) + 3
        return tf.while_loop(lambda i, y: i < times, lambda i, y: (i + 1, tf.tanh(y)), [0, x])[1]


@pytest.mark.parametrize(
    "kind", [mk.data.resident, pytest.param(mk.data.batches, marks=pytest.mark.slow)], ids=["loop", "step"]
)
def test_a_loop_without_a_bound_is_named(make_loop: Any, kind: Any) -> None:
    loop = make_loop(("one_device", 1), lambda: sequential((4,), L.Dense(1), Repeated()), jit_compile=True)
    recipe = kind(mk.data.arrays(np.ones((24, 4), "float32"), np.ones((24, 1))), global_batch_size=12)
    with pytest.raises(StepError, match=r"fixed tensor list size.*jit_compile=False"):
        loop.fit(recipe, verbose=0)


@pytest.mark.slow  # fast: what the search finds, in tests/checks
def test_nan_watch_names_what_only_xla_accepts(make_loop: Any) -> None:
    """A label out of range: an error without XLA, NaN with it."""

    def loss(y: Any, y_pred: Any) -> Any:  # of Keras's own loss, labels in memory are checked before
        return keras.ops.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    loop = make_loop(("one_device", 1), _net, loss=loss, jit_compile=True)
    data = mk.data.arrays(np.ones((24, 4), "float32"), np.full(24, 7))
    with pytest.raises(NonFiniteLossError, match=r"error in batch 0: .*label value of 7"):
        loop.fit(mk.data.resident(data, global_batch_size=12), callbacks=[mk.checks.NanWatch()], verbose=0)


def test_other_values_are_refused(make_loop: Any) -> None:
    with pytest.raises(StepError, match="found 'yes'"):
        make_loop(("one_device", 1), _net, jit_compile="yes")


@pytest.mark.slow  # a process of its own
def test_calls_of_any_length_and_place_are_compiled_once(run_python: Any) -> None:
    code = """
        import json, os, pathlib
        os.environ["XLA_FLAGS"] = "--xla_dump_to=compiled --xla_dump_hlo_as_text"
        import numpy as np
        import mirrorkit as mk
        from mirrorkit._keras import keras

        strategy = mk.strategy.create("one_device", devices="cpu:1")
        with strategy.scope():
            model, optimizer = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        step = mk.train.Step(model, optimizer, loss="mse", jit_compile=True)
        loop = mk.train.Loop(strategy, step, steps_per_call=3)
        data = mk.data.arrays(np.ones((40, 2), "float32"), np.ones((40, 1), "float32"))
        loop.fit(mk.data.resident(data, global_batch_size=4), epochs=2, verbose=0)
        loop.fit(mk.data.resident(data, global_batch_size=4), epochs=1, steps_per_epoch=7, verbose=0)
        modules = pathlib.Path("compiled").glob("*inference_many*.before_optimizations.txt")
        print(json.dumps(sorted({path.name.split(".")[0] for path in modules})))
    """
    assert len(run_python(code).json()) == 2  # one for each recipe: of eight calls and of three
