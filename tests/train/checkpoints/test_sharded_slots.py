"""Checkpoints of `shard_optimizer` hold whole slots: any number of replicas goes on, with sharding or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_helpers import plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.folder import Folder
from mirrorkit.train.step.sharded_slots import WholeSlot, whole_values
from mirrorkit.variables import copies

L = keras.layers


def _net() -> Any:
    return sequential((4,), L.Dense(7, activation="tanh"), L.BatchNormalization(), L.Dense(1))


@pytest.fixture(scope="module")
def sharded_loop(make_loop: Any) -> Any:
    """`sharded_loop(replicas, sharded)`: a loop as new, with a schedule, compiled once."""
    made: dict[Any, Any] = {}

    def get(replicas: int, sharded: bool) -> mk.train.Loop:
        key = replicas, sharded
        if key not in made:
            keras.utils.clear_session(free_memory=False)
            adam = lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.5))  # noqa: E731
            loop = make_loop(("mirrored", replicas), _net, adam, shard_optimizer=sharded, ema=0.9)
            made[key] = loop, _values(loop)
        loop, first = made[key]
        loop.position = mk.train.Position()
        _set(loop, first)
        return loop

    return get


def _set(loop: Any, values: list[np.ndarray]) -> None:
    """Put back what `_values` returned."""
    for variable, value in zip(loop.step.saved_variables, values, strict=True):
        for copy in [variable] if isinstance(variable, WholeSlot) else copies(variable):
            copy.assign(value)


def _newest(folder: Path) -> Any:
    place = Folder(folder)
    return place.read(place.find()[0])


def _values(loop: Any) -> list[np.ndarray]:
    return whole_values(loop.step.saved_variables)


def test_files_are_what_they_are_without_sharding(sharded_loop: Any, numbers: Any, tmp_path: Path) -> None:
    """Checkpoints: names of Keras's layers, shapes, dtypes, order and values. Models of Keras: with whole slots.

    A saved model goes on in Keras; `load_weights` of one trained without sharding brings its slots.
    """
    data = plain_dataset(*numbers, batch=20)
    loops = {sharded: sharded_loop(2, sharded) for sharded in (False, True)}
    found = []
    for sharded, loop in loops.items():
        saver = keras.callbacks.ModelCheckpoint(tmp_path / f"{sharded}.keras")
        loop.fit(data, verbose=0, callbacks=[saver, mk.train.Checkpoints(tmp_path / str(sharded))])
        about, values = _newest(tmp_path / str(sharded))
        assert "adam/sequential_dense_kernel_velocity" in [one["path"] for one in about["variables"]]
        found.append((about["variables"], values))
    np.testing.assert_equal(found[1], found[0])
    slots = [v for v in loops[True].step.saved_variables if v.path.startswith("adam/")]
    loaded = keras.saving.load_model(tmp_path / "True.keras")
    np.testing.assert_equal([v.numpy() for v in loaded.optimizer.variables], whole_values(slots))
    loops[False].fit(data, epochs=2, verbose=0)
    loops[False].step.model.save_weights(tmp_path / "plain.weights.h5")
    loops[True].step.model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_equal(whole_values(slots), [v.numpy() for v in loops[False].step.optimizer.variables])
    before = whole_values(slots)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        loops[True].step.optimizer.load_own_variables({"0": np.array(3)})
    np.testing.assert_equal(whole_values(slots), before)


def test_a_step_around_it_must_say_what_is_saved(sharded_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Otherwise the file would hold the pieces of one replica."""
    inner = sharded_loop(2, True).step

    class Around:
        build, compute, update = inner.build, inner.compute, inner.update
        variables = property(lambda self: inner.variables)

    class Tells(Around):
        saved_variables = property(lambda self: inner.saved_variables)

    inner_strategy = inner.strategy
    loop = mk.train.Loop(inner_strategy, Around())
    with pytest.raises(CheckpointError, match=r"Around .*saved_variables"):
        loop.fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    mk.train.Loop(inner_strategy, Tells()).fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    expected = _values(mk.train.Loop(inner_strategy, inner))
    np.testing.assert_equal(_newest(tmp_path)[1], expected)
