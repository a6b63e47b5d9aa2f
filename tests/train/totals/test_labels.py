"""Labels of a set in memory: one that is no class of the output is named with its example, before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError

L = keras.layers
X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
Sparse = keras.losses.SparseCategoricalCrossentropy


@pytest.fixture
def loop_of(make_loop: Callable[..., mk.train.Loop]) -> Callable[..., mk.train.Loop]:
    def make(loss: Any, *shape: int) -> mk.train.Loop:
        units = 4 * int(np.prod(shape))

        def net() -> Any:
            return sequential((8,), L.Dense(units, activation="softmax"), L.Reshape([*shape, 4]))

        return make_loop(("mirrored", 2), net, loss=loss, steps_per_call=2)

    return make


def labels(value: float, dtype: str = "float32", shape: tuple[int, ...] = ()) -> np.ndarray:
    made = np.zeros([40, *shape], dtype)
    made[(23, *[1] * len(shape))] = value
    return made


BAD = [(labels(4, "int64"), "4"), (labels(250, "uint8"), "250"), (labels(-1), "-1.0")]
BAD += [(labels(np.nan), "nan"), (labels(np.inf), "inf")]


@pytest.mark.parametrize(
    ("make", "what"), [(mk.data.batches, "fit"), (mk.data.resident, "evaluate"), (mk.data.batches, "validate")]
)
def test_a_label_that_is_no_class_is_named(loop_of: Any, make: Any, what: str) -> None:
    loop, steps = loop_of(Sparse()), 0
    good = mk.data.batches(mk.data.arrays(X, np.zeros(40, int), num_classes=4), global_batch_size=10)
    for bad, found in BAD:
        data = make(mk.data.arrays(X, bad), global_batch_size=10, **({"shuffle": True} if what == "fit" else {}))
        words = rf"A label of example 23 .* is {found}; the loss takes whole numbers from 0 to 3"
        run, given = {
            "fit": (loop.fit, {"data": data}),
            "evaluate": (loop.evaluate, {"data": data}),
            "validate": (loop.fit, {"data": good, "validation_data": data, "epochs": steps // 4 + 1}),
        }[what]
        with pytest.raises(DataError, match=words):
            run(**given)
        steps += 4 if what == "validate" else 0
        assert loop.position.steps == steps


def test_a_label_of_a_position_is_named_by_its_example(loop_of: Any) -> None:
    data = mk.data.batches(mk.data.arrays(X, labels(7, shape=(3, 3))), global_batch_size=10)
    with pytest.raises(DataError, match=r"A label of example 23 .* is 7\.0"):
        loop_of("sparse_categorical_crossentropy", 3, 3).fit(data, verbose=0)


@pytest.mark.parametrize("ignored", [-1, 255])
def test_labels_that_a_loss_ignores_are_right(loop_of: Any, ignored: int) -> None:
    loop, data = loop_of(Sparse(ignore_class=ignored)), mk.data.arrays(X, labels(ignored))
    assert np.isfinite(loop.fit(mk.data.batches(data, global_batch_size=10), verbose=0).history["loss"][0])
    other = mk.data.arrays(X, np.where(np.arange(40) == 7, 9, labels(ignored)))
    with pytest.raises(DataError, match=r"example 7 .* is 9\.0"):
        loop.fit(mk.data.batches(other, global_batch_size=10), verbose=0)


@pytest.mark.slow
def test_labels_that_a_map_makes_anew_are_not_looked_at(loop_of: Any) -> None:
    data = mk.data.arrays(X, np.full(40, 9))
    loop = loop_of(Sparse())
    loop.fit(mk.data.batches(data, global_batch_size=10, map=lambda x, y: (x, y - 7)), verbose=0)
    with pytest.raises(DataError, match=r"example 0 .* is 9"):
        loop.fit(mk.data.batches(data, global_batch_size=10), verbose=0)
