"""Loop(jit_compile=True): whole calls compiled by XLA give the same result, and are compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import largest_difference, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    return sequential((4,), L.Dense(8, activation="relu"), L.BatchNormalization(), L.Dense(5))


@pytest.fixture
def train(strategy_of: Callable[..., Any]) -> Callable[..., list[np.ndarray]]:
    """`train(where, jit_compile=, map=, **Step's options)`: weights and history.

    58 examples in batches of 12: the last has 10, a size that XLA does not know.
    """
    rng = np.random.default_rng(0)
    split = mk.data.arrays(rng.normal(size=(58, 4)).astype("float32"), rng.integers(0, 5, 58))

    def run(where: tuple[str, int], *, jit_compile: bool, map: Any = None, **options: Any) -> list[np.ndarray]:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, optimizer = _net(), keras.optimizers.SGD(0.1, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], **options)
        loop = mk.train.Loop(strategy, step, steps_per_call=3, jit_compile=jit_compile)
        data = mk.data.resident(split, global_batch_size=12, shuffle=True, seed=3, map=map)
        history = loop.fit(data, epochs=2, validation_data=data, verbose=0).history
        return [*model.get_weights(), *history.values()]

    return run


@pytest.mark.parametrize(
    ("where", "options"),
    [
        (("one_device", 1), {}),
        (("mirrored", 1), {"accumulate": 2}),
        (("central_storage", 1), {"clip_norm": 0.1, "ema": 0.9, "loss_scale": "dynamic"}),
    ],
    ids=str,
)
def test_a_compiled_call_trains_as_any_other(train: Any, where: Any, options: Any) -> None:
    plain, compiled = (train(where, jit_compile=jit_compile, **options) for jit_compile in (False, True))
    assert largest_difference(plain, compiled) < 1e-5  # measured: 3.2e-7


def test_several_replicas_are_told_that_it_does_not_apply(train: Any, caplog: pytest.LogCaptureFixture) -> None:
    plain = train(("mirrored", 2), jit_compile=False)
    assert "jit_compile" not in caplog.text
    compiled = train(("mirrored", 2), jit_compile=True)
    assert "Loop(jit_compile=True) was asked for with 2 replicas" in caplog.text
    assert largest_difference(plain, compiled) == 0


def test_what_xla_cannot_compile_is_named(train: Any) -> None:
    def through_text(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x, tf.strings.to_number(tf.strings.as_string(y), tf.int64)

    train(("one_device", 1), jit_compile=False, map=through_text)
    with pytest.raises(StepError, match=r"XLA cannot do it: .*AsString.*leave out jit_compile"):
        train(("one_device", 1), jit_compile=True, map=through_text)


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
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=3, jit_compile=True)
        data = mk.data.arrays(np.ones((40, 2), "float32"), np.ones((40, 1), "float32"))
        loop.fit(mk.data.resident(data, global_batch_size=4), epochs=2, verbose=0)
        loop.fit(mk.data.resident(data, global_batch_size=4), epochs=1, steps_per_epoch=7, verbose=0)
        modules = pathlib.Path("compiled").glob("*inference_many*.before_optimizations.txt")
        print(json.dumps(sorted({path.name.split(".")[0] for path in modules})))
    """
    assert len(run_python(code).json()) == 2  # one for each recipe: five calls, the last of one step, and three
