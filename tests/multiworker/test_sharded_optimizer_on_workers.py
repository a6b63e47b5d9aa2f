"""Sharded optimizer state on two workers: the bits of two workers without, and checkpoints that hold whole slots."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sharded_training
from launching import launched

from mirrorkit._keras import keras
from mirrorkit.train.step.sharded_slots import whole_values

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:A global batch of")]


def test_two_workers(tmp_path: Path, strategy_of) -> None:
    launched(Path(sharded_training.__file__), tmp_path, folder=tmp_path)
    for worker in (0, 1):
        found = json.loads((tmp_path / f"found{worker}.json").read_text())
        assert all(found["resumed"]), worker
        assert all(found["resumed without"]), worker
        assert not all(found["half way"])
        assert "one device or mirrored, found MultiWorkerMirroredStrategy" in found["refusal"]
        decayed, biases = 8 * 7 + 14 + 21 + 6, 7 + 3 + 2
        assert found["sizes"] == [[], [], *[[-(-decayed // 2)]] * 2, *[[biases // 2]] * 2]
    halves = [np.load(tmp_path / f"half{worker}.npz") for worker in (0, 1)]
    np.testing.assert_equal(*[[half[name] for name in half.files] for half in halves])
    # Three replicas of one process go on from what two workers wrote.
    loop = sharded_training.make_loop(strategy_of("mirrored", 3), sharded=True)
    loop.restore(tmp_path / "kept" / "checkpoints")
    assert loop.position.steps == 10
    np.testing.assert_equal(whole_values(loop.step.saved_variables), [halves[0][name] for name in halves[0].files])
    loop.fit(sharded_training.data(), epochs=3, verbose=0)
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        keras.saving.load_model(tmp_path / "sharded" / "model.keras")
