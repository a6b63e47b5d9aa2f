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
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.step.sharded_slots import WholeSlot, whole_values
from mirrorkit.variables import copies, is_sharded

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    return sequential((4,), L.Dense(7, activation="tanh"), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1))


def _loop(make_loop: Any, replicas: int, sharded: bool, optimizer: Any = keras.optimizers.Nadam) -> mk.train.Loop:
    keras.utils.clear_session(free_memory=False)
    return make_loop(("mirrored", replicas), _net, lambda: optimizer(0.02), shard_optimizer=sharded, ema=0.9)


def _slower(rate: float) -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.5))


def _values(loop: Any) -> list[np.ndarray]:
    return whole_values(loop.step.saved_variables)


def _spoil(loop: Any) -> None:
    for variable in loop.step.variables:
        variable.assign(np.full(variable.shape, 7, np.dtype(variable.dtype)))


def test_two_epochs_and_two_are_four(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Bit for bit: where all goes on as it was, and where sharding begins or ends in between; with a schedule."""

    def fit(loop: Any, folder: Path, epochs: int) -> list[np.ndarray]:
        loop.position = mk.train.Position()
        loop.fit(recipe, epochs=epochs, verbose=0, callbacks=[mk.train.Checkpoints(folder)])
        return _values(loop)

    loops = {sharded: _loop(make_loop, 2, sharded, _slower) for sharded in (False, True)}
    begin = _values(loops[False])
    expected = fit(loops[False], tmp_path / "whole", 4)
    for before, after in ((True, True), (True, False), (False, True)):
        for loop in loops.values():
            _spoil(loop)
        for variable, value in zip(loops[before].step.saved_variables, begin, strict=True):
            if isinstance(variable, WholeSlot):
                variable.assign(value)
            else:
                for copy in copies(variable):
                    copy.assign(value)
        folder = tmp_path / f"{before}{after}"
        fit(loops[before], folder, 2)
        _spoil(loops[before])
        np.testing.assert_equal(fit(loops[after], folder, 4), expected)


def test_a_checkpoint_is_the_file_that_it_is_without_sharding(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Names of Keras's layers, shapes, dtypes, order and values."""
    found = []
    for sharded in (False, True):
        loop = _loop(make_loop, 3, sharded, keras.optimizers.Adam)
        loop.fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path / str(sharded))])
        about, values = checkpoint_file.read(checkpoint_file.find(tmp_path / str(sharded))[0])
        assert "adam/sequential_dense_kernel_velocity" in [one["path"] for one in about["variables"]]
        found.append((about["variables"], values))
    np.testing.assert_equal(found[1], found[0])


@pytest.mark.parametrize("sharded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_two_replicas_go_on_as_four(sharded: bool, make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Every value arrives; what follows has the bits of four replicas without sharding."""
    before = _loop(make_loop, 2, True)
    before.fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    loop = _loop(make_loop, 4, sharded)
    loop.restore(tmp_path)
    np.testing.assert_equal(_values(loop), _values(before))
    for variable in loop.step.variables:
        first, *others = [copy.numpy() for copy in copies(variable)]
        assert is_sharded(variable) or all(np.array_equal(first, other) for other in others)
    assert any(np.any(v.numpy()) for v in loop.step.saved_variables if "velocity" in v.path)


def test_files_of_keras_hold_whole_slots(make_loop: Any, numbers: Any, tmp_path: Path) -> None:
    """A saved model goes on in Keras; `load_weights` of one trained without sharding brings its slots."""
    data = plain_dataset(*numbers, batch=20)
    loops = {sharded: _loop(make_loop, 2, sharded, keras.optimizers.Adam) for sharded in (False, True)}
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "sharded.keras")
    loops[True].fit(data, verbose=0, callbacks=[saver])
    slots = [v for v in loops[True].step.saved_variables if v.path.startswith("adam/")]
    loaded = keras.saving.load_model(tmp_path / "sharded.keras")
    np.testing.assert_equal([v.numpy() for v in loaded.optimizer.variables], whole_values(slots))
    loops[False].fit(data, epochs=2, verbose=0)
    loops[False].step.model.save_weights(tmp_path / "plain.weights.h5")
    loops[True].step.model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_equal(whole_values(slots), [v.numpy() for v in loops[False].step.optimizer.variables])
    before = whole_values(slots)
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer 'adam'"):
        loops[True].step.optimizer.load_own_variables({"0": np.array(3), "1": np.array(0.5)})
    np.testing.assert_equal(whole_values(slots), before)


@pytest.mark.slow  # fast: the saved model of the test above
def test_an_exported_model_is_the_one_without_sharding(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    loop = _loop(make_loop, 2, True)
    loop.fit(recipe, verbose=0)
    exported = keras.saving.load_model(mk.train.export(loop, tmp_path / "net.keras"))
    np.testing.assert_equal(exported.get_weights(), loop.step.model.get_weights())


def test_a_step_around_it_must_say_what_is_saved(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Otherwise the file would hold the pieces of one replica."""
    inner = _loop(make_loop, 2, True).step

    class Around:
        build, compute, update = inner.build, inner.compute, inner.update
        variables = property(lambda self: inner.variables)

    class Tells(Around):
        saved_variables = property(lambda self: inner.saved_variables)

    inner_strategy = inner.strategy
    loop = mk.train.Loop(inner_strategy, Around())
    with pytest.raises(CheckpointError, match=r"Around include slots of a Step.shard_optimizer=True.*saved_variables"):
        loop.fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    mk.train.Loop(inner_strategy, Tells()).fit(recipe, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    expected = _values(mk.train.Loop(inner_strategy, inner))
    np.testing.assert_equal(checkpoint_file.read(checkpoint_file.find(tmp_path)[0])[1], expected)
