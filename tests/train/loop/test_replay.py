"""`Replay`: an epoch's updates once more, with the bits of the first time, and the rows that they take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training_helpers import line_net, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop.replay import Replay

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


@pytest.mark.slow
def test_updates_have_the_bits_of_the_fit(line: Any, data: Any) -> None:
    first = values_of(line)
    line.fit(data, epochs=1, verbose=0)
    expected = values_of(line)
    set_values(line, first)

    def again() -> None:
        trained, position = values_of(line), copy.deepcopy(line.position)
        set_values(line, first)
        replay = Replay(line.running, 0, 0)
        for batch in range(STEPS):
            assert replay.batch == batch
            assert replay.update()
        assert not replay.update()
        np.testing.assert_equal(values_of(line), expected)
        assert line.position == position
        (replicas,) = Replay(line.running, 1, 3).rows()
        assert [len(rows[0]) for rows in replicas] == [6, 6]
        for parts, whole in zip(zip(*replicas, strict=True), list(data.dataset(epoch=1))[3], strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), whole)
        set_values(line, trained)

    report = line.fit(data, epochs=2, callbacks=[_AtEnd(again)], verbose=0)  # the second epoch has another order
    assert [epoch.steps for epoch in report.epochs] == [STEPS] * 2


@pytest.mark.slow
def test_an_update_takes_as_many_batches_as_it_did(make_loop: Any, recipe: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, accumulate=2)
    first = values_of(loop)

    def again() -> None:
        trained = values_of(loop)
        assert [len(Replay(loop.running, 0, batch).rows()) for batch in (0, 2, 4)] == [2, 2, 1]
        set_values(loop, first)
        replay, seen = loop.replay(0, 0), []
        while replay.update():
            seen.append(replay.batch)
        assert seen == [2, 4, 5]
        np.testing.assert_equal(values_of(loop), trained)

    loop.fit(recipe, epochs=1, callbacks=[_AtEnd(again)], verbose=0)
