"""Predictions that depend on how a batch is cut are refused before the first batch, on several replicas."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import TWO, X

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
ops = keras.ops
ONE = ("one_device", 1)
DATA = mk.data.batches(mk.data.arrays(X, X[:, :1]), global_batch_size=16, shuffle=False, drop_remainder=False)


class Predicts(keras.Model):  # type: ignore[misc, name-defined]
    """Returns what a function makes of itself and of the outputs of a dense layer."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.dense, self.normalization, self.generator = (
            L.Dense(3),
            L.BatchNormalization(),
            keras.random.SeedGenerator(1),
        )
        self.outputs_of = outputs

    def call(self, x: Any) -> Any:
        values = self.dense(x)
        self.normalization(values)  # built for all alike
        return self.outputs_of(self, values)


def predicts(make_loop: Any, outputs: Any, replicas: Any = TWO, **options: Any) -> Any:
    def built() -> Any:
        model = Predicts(outputs)
        model(X[:2])
        return model

    return make_loop(replicas, built, loss="mse", **options).predict(DATA)


def noise(values: Any, seed: Any) -> Any:
    return values + keras.random.normal(ops.shape(values), seed=seed)


REFUSED = {
    "batch statistics": lambda model, values: model.normalization(values, training=True),
    "a mean over the rows": lambda model, values: values - ops.mean(values, axis=0),
    "two rows for each": lambda model, values: ops.concatenate([values, values]),
    "one row for all": lambda model, values: ops.mean(values, axis=0, keepdims=True),
    "a constant seed": lambda model, values: noise(values, 3),
    "ranks": lambda model, values: ops.argsort(values, axis=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_several_replicas(name: str, make_loop: Any) -> None:
    with pytest.raises(mk.errors.StepError, match="predicts for 16 rows"):
        predicts(make_loop, REFUSED[name])


@pytest.mark.parametrize("name", ["batch statistics", "one row for all"])
def test_taken_on_one_replica(name: str, make_loop: Any) -> None:
    assert predicts(make_loop, REFUSED[name], ONE).shape == ((24, 3) if name == "batch statistics" else (2, 3))


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (lambda model, values: {"a": values, "b": ops.mean(values)}, "'b' for 16 rows is the shape ()"),
        (lambda model, values: (values, None), "'1' for 16 rows is None"),
    ],
)
def test_an_output_without_rows(outputs: Any, found: str, make_loop: Any) -> None:
    with pytest.raises(mk.errors.StepError, match=f"predicts as {re.escape(found)}"):
        predicts(make_loop, outputs)


SILENT = {
    "an own generator": lambda model, values: noise(values, model.generator),
    "two rows beside each other": lambda model, values: ops.repeat(values, 2, axis=0),
    "classes": lambda model, values: {"p": values, "class": ops.argmax(values, axis=-1)},
    "BatchNormalization": lambda model, values: model.normalization(values),
}


@pytest.mark.parametrize("name", SILENT)
def test_silent_where_rows_are_their_own(name: str, make_loop: Any) -> None:
    found = predicts(make_loop, SILENT[name])
    assert {len(part) for part in keras.tree.flatten(found)} == {48 if name.startswith("two") else 24}
    if name != "an own generator":
        for one, two in zip(*map(keras.tree.flatten, (predicts(make_loop, SILENT[name], ONE), found)), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


def test_left_out_by_name(make_loop: Any) -> None:
    assert predicts(make_loop, REFUSED["batch statistics"], unchecked=("rows",)).shape == (24, 3)


def test_looked_at_ever_more_seldom(make_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorkit.train.first_batch import check

    seen = []
    monkeypatch.setattr(check, "compare_parts", lambda *given, again: seen.append(given) is None)
    loop = make_loop(TWO, lambda: keras.Sequential([keras.Input((4,)), L.Dense(1)]), loss="mse")
    for expected in (1, 2, 3, 3, 4, 4):  # the first pass, and the first, second, fourth, ... further one
        loop.predict(DATA)
        assert len(seen) == expected
