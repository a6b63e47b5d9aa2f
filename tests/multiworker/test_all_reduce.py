"""Sums over several workers: short messages are gathered, long ones go in a ring, all do where a ring was asked for."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from launching import launched
from ml_dtypes import finfo
from summing_worker import IN_A_RING, LOOPS, SHAPES, addends, dtype

WORKER = Path(__file__).with_name("summing_worker.py")
WORKERS = 3


def written(folder: Path, name: str, worker: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}{worker}.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.mark.slow  # three workers
@pytest.mark.parametrize("communication", ["auto", "ring"])
def test_sums_and_gradients_are_those_of_all_workers(communication, tmp_path):
    launched(WORKER, tmp_path, "--communication", communication, folder=tmp_path, workers=WORKERS, timeout=120)
    times = 2 ** (LOOPS - 1)
    added = [{name: times * value for name, value in addends(worker).items()} for worker in range(WORKERS)]
    for worker in range(WORKERS):
        counts = json.loads((tmp_path / f"counts{worker}.json").read_text())
        gathered = 2 * 4 if communication == "auto" else 0  # of four messages, and of their gradients
        assert (counts["Gather"], counts["Reduce"]) == (gathered, 2 * 6 - gathered)
        sums, gradients = written(tmp_path, "sums", worker), written(tmp_path, "gradients", worker)
        for name, (shape, _) in SHAPES.items():
            np.testing.assert_array_equal(sums[name], written(tmp_path, "sums", 0)[name])
            if gathered and name not in IN_A_RING:
                np.testing.assert_array_equal(sums[name], reduce(np.add, [own[name] for own in added]))
            exact, sizes = (sum(f(own[name].astype("float64")) for own in added) for f in (np.positive, np.abs))
            assert (np.abs(sums[name] - exact) <= WORKERS * float(finfo(dtype(name)).eps) * sizes).all(), name
            np.testing.assert_array_equal(gradients[name], np.full(shape, 1 + 2 + 3))


@pytest.mark.slow  # two workers
def test_another_communication_on_one_worker_is_named(tmp_path):
    done = launched(WORKER, tmp_path, "--communication", "auto", "ring", folder=tmp_path, timeout=120, check=False)
    assert done.returncode != 0
    assert "worker 1 was started with other communication than worker 0: 'ring' instead of 'auto'" in done.stderr
