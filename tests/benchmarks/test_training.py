"""The trainings that benchmarks run: mirrorkit's loop and Keras's fit."""

from __future__ import annotations

import pytest
import tensorflow as tf
from harness import training
from on_gpus import processes


def test_only_the_first_gpu_is_split(monkeypatch):
    asked = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind} 0", f"{kind} 1"])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *given: asked.append(given))
    training.split_first_gpu(2, mebibytes=100)
    ((device, parts),) = asked
    assert device == "GPU 0"
    assert [part.memory_limit for part in parts] == [100, 100]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mnist.npz"
    facts = processes.write(str(path), "mnist", None, 640, synthetic=True)
    assert facts == {"data": "synthetic 28x28x1", "examples": 640}
    return str(path)


def make(kind, digits, **options):
    return kind(kind="one_device", devices="cpu:1", model="linear", data=digits, global_batch_size=64, **options)


def test_fit_trains_as_the_loop_does_and_its_default_is_kerass(digits):
    fit, loop = make(training.Fit, digits), make(training.Training, digits)
    for trained in (fit, loop):
        assert trained.measure(8) > 0
    assert fit.evaluate() == pytest.approx(loop.evaluate(), abs=0.05)
    assert fit.evaluate() > 0.3
    assert fit.facts() == {"data": "synthetic", "examples": 640, "xla": False, "on": "no strategy"}
    assert loop.facts()["on"].startswith("OneDeviceStrategy")


def test_options_of_fit_reach_compile(digits):
    fit = make(training.Fit, digits, jit_compile=True, many_steps=True)
    assert fit._net.jit_compile is True
    assert fit._net.steps_per_execution == 10  # of ten steps in an epoch
    assert fit.facts()["xla"] is True


@pytest.mark.parametrize("asked", [True, False])
def test_jit_compile_reaches_the_step(asked, digits, monkeypatch):
    given = []
    step, loop = training.train.Step, training.train.Loop

    def keep(*arguments, **options):
        given.append(options["jit_compile"])
        return step(*arguments, **{**options, "jit_compile": False})

    monkeypatch.setattr(training.train, "Step", keep)
    monkeypatch.setattr(loop, "warm_up", lambda *_, **__: None)
    make(training.Training, digits, jit_compile=asked)
    make(training.Training, digits)
    assert given == [asked, "auto"]


def test_the_input_alone_trains_nothing(digits):
    loop = make(training.Training, digits, resident=False)
    before = loop.evaluate()
    (rate,) = loop.input_rates()
    assert rate > 0
    assert loop.evaluate() == before
