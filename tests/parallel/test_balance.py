"""A proposal for a layout: the cut whose largest stage is smallest."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.parallel.balance import cut

L = keras.layers


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_no_other_cut_has_a_smaller_largest_part(parts: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = [int(size) for size in rng.integers(0, 30, 7)]

        def largest(places: Any, sizes: Any = sizes) -> int:
            return max(sum(sizes[a:b]) for a, b in itertools.pairwise([0, *places, len(sizes)]))

        every = itertools.combinations(range(1, len(sizes)), parts - 1)
        assert largest(cut(sizes, parts)) == min(largest(places) for places in every)


def dense(*units: int) -> Any:
    x = h = keras.Input([16])
    for i, size in enumerate(units):
        h = L.Dense(size, name=f"dense{i}")(h)
        h = L.Dropout(0.1)(h)
    return keras.Model(x, h)


def test_weights_decide_for_small_batches_and_activations_for_large_ones() -> None:
    """16 x 64 and 64 x 8 weights: the first layer is larger; with many examples it is so alone."""
    small = mk.parallel.balanced_rules(lambda: dense(64, 64, 8), 2, batch_size=1)
    assert small == {"^(dense0)/": 0, "^(dense1|dense2)/": 1}
    large = mk.parallel.balanced_rules(lambda: dense(8, 8, 8, 800), 2, batch_size=10_000)
    assert large == {"^(dense0|dense1|dense2)/": 0, "^(dense3)/": 1}


def test_slots_count() -> None:
    """The first layer has most weights, the last one most activations."""
    rules = [mk.parallel.balanced_rules(lambda: dense(100, 2, 2, 200), 2, batch_size=60, slots=n) for n in (0, 8)]
    assert list(rules[0]) == ["^(dense0|dense1|dense2)/", "^(dense3)/"]
    assert list(rules[1]) == ["^(dense0|dense1)/", "^(dense2|dense3)/"]


def test_no_variable_is_made() -> None:
    with pytest.raises(AssertionError, match="made"), mk_fails_to_make_variables():
        dense(8)
    with mk_fails_to_make_variables():
        mk.parallel.balanced_rules(lambda: dense(8, 8), 2, batch_size=8)
        with keras.StatelessScope():
            pass  # at whose end Keras makes those that have waited
        kept = []
        with pytest.raises(ZeroDivisionError):
            mk.parallel.balanced_rules(lambda: kept.append(dense(8, 8)) or 1 / 0, 2, batch_size=8)
        with keras.StatelessScope():
            pass


def mk_fails_to_make_variables() -> Any:
    import tensorflow as tf

    def create(next_creator: Any, **options: Any) -> Any:
        raise AssertionError("a variable was made")

    return tf.variable_creator_scope(create)


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(3, name="dense")
        self(keras.KerasTensor((None, 3)))

    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.parametrize(
    ("make", "devices", "words"),
    [
        (lambda: keras.Sequential([keras.Input([3]), L.Dense(3), L.Dense(3)]), 2, "'dense.*different names when"),
        (lambda: dense(8, 8), 3, "3 devices .*2 layers"),
        (lambda: dense(8, 8), 0, "0 devices were asked for"),
        (lambda: nested("a", "a"), 2, "begin with 'a'"),
        (lambda: Own(), 1, "found <Own"),
    ],
    ids=["names that change", "too many devices", "none", "names of several layers", "subclassed"],
)
def test_refused(make: Any, devices: int, words: str) -> None:
    with pytest.raises(StepError, match=words):
        mk.parallel.balanced_rules(make, devices, batch_size=8)


def nested(*names: str) -> Any:
    x = h = keras.Input([16])
    for number, name in enumerate(names):
        inner = keras.Input([16])
        h = keras.Model(inner, L.Dense(16, name=name)(inner), name=f"block{number}")(h)
    return keras.Model(x, h)


def test_layers_in_a_model_in_a_model() -> None:
    """Their paths have the names of the inner layers alone."""
    rules = mk.parallel.balanced_rules(lambda: nested("a", "b", "c", "d"), 2, batch_size=8)
    assert rules == {"^(a|b)/": 0, "^(c|d)/": 1}


def test_a_sequential_model() -> None:
    """Its own name, which comes first in the paths of layers that it builds, is another one each time."""

    def make() -> Any:
        inner = keras.Sequential([keras.Input([4]), L.Dense(4, name="c")], name="inner")
        layers = [L.Dense(4, name="a"), L.BatchNormalization(name="b"), inner, L.Dense(4, name="d")]
        return keras.Sequential([keras.Input([4]), *layers])

    rules = mk.parallel.balanced_rules(make, 2, batch_size=8)
    with mk.parallel.Layout(rules, devices=["cpu:0", "cpu:1"]) as layout, layout.strategy().scope():
        model = make()
    found = {variable.path.split("/")[-2]: variable.value.device[-1] for variable in model.variables}
    assert found == {"a": "0", "b": "0", "c": "1", "d": "1"}
