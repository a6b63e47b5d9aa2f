"""The MNIST example with a custom loop, on two workers: >= 97 % in one epoch, and the weights of two replicas."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from jobs import ROOT, finished

import mirrorkit as mk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST in $MIRRORKIT_DATA"),
]
SCRIPT = Path(__file__).with_name("recorded_example.py")
STEPS = 469  # of the epoch


def weights(folder: Path, step: int, worker: int = 0) -> list[np.ndarray]:
    with np.load(folder / f"step{step}-worker{worker}.npz") as file:
        return [file[name] for name in file.files]


@pytest.mark.usefixtures("with_onednn")
def test_two_workers_learn_mnist_and_equal_two_replicas(tmp_path: Path) -> None:
    workers, one = tmp_path / "workers", tmp_path / "one"
    workers.mkdir()
    one.mkdir()
    arguments = [STEPS, ROOT / "examples" / "mnist_custom_loop.py", "--data", "mnist", "--epochs", "1"]
    printed = finished(tmp_path, SCRIPT, workers, *arguments, limit=500).text
    accuracies = [float(value) for value in re.findall(r"worker \d .*test accuracy (\d\.\d+)", printed)]
    assert len(accuracies) >= 2
    assert min(accuracies[-2:]) >= 0.97  # 98.0 %

    code = f"""
        import runpy, sys
        sys.argv = {[str(SCRIPT), str(one), *map(str, arguments), "--devices", "cpu:2"]!r}
        runpy.run_path(sys.argv[0], run_name="__main__")
    """
    mk.testing.run_in_fresh_process(code, timeout=500)
    for a, b, c in zip(weights(workers, STEPS, 0), weights(workers, STEPS, 1), weights(one, STEPS), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)  # two replicas add two numbers, in whatever order
