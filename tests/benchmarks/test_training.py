"""The trainings that benchmarks run: mirrorkit's loop and Keras's fit."""

from __future__ import annotations

import pytest
from harness import training
from on_gpus import processes


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mnist.npz"
    facts = processes.write(str(path), "mnist", None, 640, synthetic=True)
    assert facts == {"data": "synthetic 28x28x1", "examples": 640}
    return str(path)


def make(kind, digits, **options):
    return kind(kind="one_device", devices="cpu:1", model="linear", data=digits, global_batch_size=64, **options)


@pytest.mark.slow
def test_fit_trains_as_the_loop_does_and_its_default_is_kerass(digits):
    fit, loop = make(training.Fit, digits), make(training.Training, digits)
    for trained in (fit, loop):
        assert trained.measure(8) > 0
    assert fit.evaluate() == pytest.approx(loop.evaluate(), abs=0.05)
    assert fit.evaluate() > 0.3
    assert fit.facts() == {"data": "synthetic", "examples": 640, "xla": False, "on": "no strategy"}
    assert loop.facts()["on"].startswith("OneDeviceStrategy")
