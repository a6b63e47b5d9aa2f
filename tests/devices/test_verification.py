"""Devices that compute wrongly are found; oneDNN."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import devices
from mirrorkit.devices import onednn, verification
from mirrorkit.errors import DeviceError

CPUS = tuple(f"/device:CPU:{i}" for i in range(4))


no_gpu = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU")


def test_verify_reports_every_device_and_the_versions():
    report = devices.verify(require="cpu:4")
    assert tuple(device.name for device in report.devices if device.kind == "CPU") == CPUS
    assert report.tensorflow == tf.__version__
    assert report.devices[0].memory > 2**28
    text = str(report)
    assert all(name in text for name in CPUS)
    assert f"TensorFlow {tf.__version__}, Keras {report.keras}" in text


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_verify_finds_a_device_that_computes_wrongly(monkeypatch, op):
    module = tf.linalg if op == "matmul" else tf.nn
    original = getattr(module, op)

    def wrong_on_cpu_2(*args, **options):
        result = original(*args, **options)
        return result + 0.5 if result.device.endswith("CPU:2") else result

    monkeypatch.setattr(module, op, wrong_on_cpu_2)
    with pytest.raises(DeviceError, match=r"^/device:CPU:2: .* 0\.5") as caught:
        devices.verify()
    assert "CPU:1" not in str(caught.value)


def test_verify_finds_nan_and_a_device_that_fails_and_names_both(monkeypatch):
    original = tf.linalg.matmul

    def broken(a, b):
        result = original(a, b)
        if result.device.endswith("CPU:1"):
            return result * np.nan
        if result.device.endswith("CPU:3"):
            raise tf.errors.InternalError(None, None, "out of order")
        return result

    monkeypatch.setattr(tf.linalg, "matmul", broken)
    with pytest.raises(DeviceError, match=r"CPU:1: .*nan.*\n.*CPU:3: .*out of order"):
        devices.verify()


def test_verify_finds_work_that_ran_elsewhere(monkeypatch):
    original = tf.linalg.matmul

    def on_cpu_0(a, b):
        with tf.device("/device:CPU:0"):
            return original(a, b)

    monkeypatch.setattr(tf.linalg, "matmul", on_cpu_0)
    with pytest.raises(DeviceError, match=r"CPU:1: .*CPU:0"):
        devices.verify()


@no_gpu
def test_require_gpu_fails_without_one(monkeypatch):
    monkeypatch.setattr(verification, "nvidia_smi", lambda *fields: [])
    with pytest.raises(DeviceError, match="1 GPU required, 0 found"):
        devices.verify(require="gpu")


@no_gpu
def test_require_gpu_tells_of_gpus_that_tensorflow_does_not_use(monkeypatch):
    monkeypatch.setattr(verification, "nvidia_smi", lambda *fields: [["NVIDIA X", "1000", "555.1"]] * 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DeviceError, match=r"CUDA_VISIBLE_DEVICES .*'7'"):
        devices.verify(require="gpu:2")


def test_require_counts():
    with pytest.raises(DeviceError, match="5 CPU required, 4 found"):
        devices.verify(require="cpu:5")


@pytest.mark.parametrize("require", ["gpu:0", "gpu:x", "", "amd", "cpu:-1"])
def test_require_that_cannot_be_read(require):
    with pytest.raises(DeviceError, match="not understood"):
        devices.verify(require=require)


def test_the_nvidia_driver_is_read_through_nvidia_smi(monkeypatch):
    answer = "NVIDIA H200, 143771, 565.57.01\nNVIDIA L4, [N/A], 565.57.01\n"
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: SimpleNamespace(stdout=answer))
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda d: {"device_name": "NVIDIA H200", "compute_capability": (9, 0)},
    )
    monkeypatch.setattr(verification, "owners", lambda: defaultdict(lambda: "gpu"))
    assert devices.verify().driver == "565.57.01"
    gpu = verification._described("/device:GPU:0", {"NVIDIA H200": 143771 * 2**20})
    assert gpu == devices.Device("/device:GPU:0", "GPU", "NVIDIA H200", 143771 * 2**20, (9, 0))
    report = devices.Verification((gpu,), tensorflow="2", keras="3", cuda="12.5", cudnn="9", driver="565.57.01")
    assert "NVIDIA H200, 140.4 GiB, compute capability 9.0" in str(report)
    assert "built for CUDA 12.5 and cuDNN 9, NVIDIA driver 565.57.01" in str(report)


@pytest.mark.parametrize(
    ("variable", "flags", "enabled", "expected"),
    [
        (None, {"avx2"}, False, True),
        ("0", {"avx2"}, False, False),
        (None, {"avx2", "avx512_vnni"}, True, False),
        (None, set(), False, False),
        (None, {"avx2"}, None, False),
    ],
    ids=["AVX2", "decided", "on", "not x86", "not known"],
)
def test_onednn_is_left_off_only_where_it_could_be_on_and_nobody_decided(
    monkeypatch, variable, flags, enabled, expected
):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(onednn.VARIABLE, variable)
    monkeypatch.setattr(onednn.processor, "flags", lambda: frozenset(flags))
    monkeypatch.setattr(onednn, "enabled", lambda: enabled)
    assert onednn.left_off() is expected
