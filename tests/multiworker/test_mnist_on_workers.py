"""The MNIST examples as they stand, on two workers: >= 98 % in two epochs, and the weights of two replicas."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, launched

import mirrorkit as mk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST in $MIRRORKIT_DATA"),
]
SCRIPT = Path(__file__).with_name("recorded_example.py")
EPOCH_ENDS = (469, 938)  # training steps


def weights(folder: Path, step: int, worker: int = 0) -> list[np.ndarray]:
    with np.load(folder / f"step{step}-worker{worker}.npz") as file:
        return [file[name] for name in file.files]


@pytest.mark.usefixtures("with_onednn")
@pytest.mark.parametrize("name", ["mnist_loop.py", "mnist_custom_loop.py"])
def test_two_workers_learn_mnist_and_equal_two_replicas(name: str, tmp_path: Path) -> None:
    workers, one = tmp_path / "workers", tmp_path / "one"
    workers.mkdir()
    one.mkdir()
    wanted = " ".join(map(str, EPOCH_ENDS))
    arguments = [wanted, ROOT / "examples" / name, "--data", "mnist", "--epochs", "2"]
    printed = launched(SCRIPT, workers, *arguments, folder=tmp_path, timeout=500).stdout
    accuracies = [float(value) for value in re.findall(r"worker \d .*test accuracy (\d\.\d+)", printed)]
    assert len(accuracies) >= 2
    assert min(accuracies[-2:]) >= 0.98  # 98.6 %

    code = f"""
        import runpy, sys
        sys.argv = {[str(SCRIPT), str(one), *map(str, arguments), "--devices", "cpu:2"]!r}
        runpy.run_path(sys.argv[0], run_name="__main__")
    """
    mk.testing.run_in_fresh_process(code, timeout=500)
    for step in EPOCH_ENDS:
        for a, b, c in zip(weights(workers, step, 0), weights(workers, step, 1), weights(one, step), strict=True):
            np.testing.assert_array_equal(a, b)
            # Two replicas add two numbers, in whatever order: here the two came to the same bits.
            np.testing.assert_allclose(a, c, rtol=0, atol=1e-5)
