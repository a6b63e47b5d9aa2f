"""`Loop.replay`: an epoch's updates once more, with the bits of the first time, and the rows that they take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import line_net, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras

STEPS = 5  # batches of `recipe` in an epoch


@pytest.fixture(params=["batches", "resident"])
def data(request: pytest.FixtureRequest, numbers: Any) -> mk.data.Recipe:
    """Five batches of 12."""
    make = getattr(mk.data, request.param)
    return make(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True, seed=2)


class _AtEnd(keras.callbacks.Callback):
    """Does something when all is trained, while the fit still holds its data."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def on_train_end(self, logs: Any = None) -> None:
        self._act()


def _assert_same_bits(values: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_updates_have_the_bits_of_the_fit(line: Any, data: Any) -> None:
    first = values_of(line)
    line.fit(data, epochs=1, verbose=0)
    expected = values_of(line)
    set_values(line, first)

    def again() -> None:
        trained, position = values_of(line), copy.deepcopy(line.position)
        set_values(line, first)
        replay = line.replay(0, 0)
        for batch in range(STEPS):
            assert replay.batch == batch
            assert replay.update()
        assert not replay.update()
        _assert_same_bits(values_of(line), expected)
        assert line.position == position
        set_values(line, trained)

    report = line.fit(data, epochs=2, callbacks=[_AtEnd(again)], verbose=0)  # the second epoch has another order
    assert [epoch.steps for epoch in report.epochs] == [STEPS] * 2


def test_rows_are_those_of_each_replica(line: Any, data: Any) -> None:
    def look() -> None:
        batches = list(data.dataset(epoch=1))
        for number in (3, 4):
            (replicas,) = line.replay(1, number).rows()
            assert [len(rows[0]) for rows in replicas] == [6, 6]
            for parts, whole in zip(zip(*replicas, strict=True), batches[number], strict=True):
                np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert not line.replay(1, STEPS).update()

    line.fit(data, epochs=2, callbacks=[_AtEnd(look)], verbose=0)


def test_a_worker_looks_at_the_rows_that_it_reads(make_loop: Any, recipe: Any, monkeypatch: Any) -> None:
    """One replica, which reads what worker 1 of 2 would."""
    context = tf.distribute.InputContext(2, 1, 2)
    monkeypatch.setattr("mirrorkit.train.input.input.input_context", lambda strategy: context)
    loop = make_loop(("one_device", 1), line_net)

    def look() -> None:
        for number, whole in enumerate(recipe.dataset(epoch=0)):
            ((rows,),) = loop.replay(0, number).rows()
            for own, of_all in zip(rows, whole, strict=True):
                np.testing.assert_array_equal(own, of_all[6:])

    loop.fit(recipe, epochs=1, callbacks=[_AtEnd(look)], verbose=0)


def test_an_update_takes_as_many_batches_as_it_did(make_loop: Any, recipe: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, accumulate=2)
    first = values_of(loop)

    def again() -> None:
        trained = values_of(loop)
        assert [len(loop.replay(0, batch).rows()) for batch in (0, 2, 4)] == [2, 2, 1]
        set_values(loop, first)
        replay, seen = loop.replay(0, 0), []
        while replay.update():
            seen.append(replay.batch)
        assert seen == [2, 4, 5]
        _assert_same_bits(values_of(loop), trained)

    loop.fit(recipe, epochs=1, callbacks=[_AtEnd(again)], verbose=0)
