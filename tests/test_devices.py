from __future__ import annotations

import os
import platform
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


def test_find_lists_the_four_virtual_cpus():
    assert devices.find("cpu") == CPUS
    assert devices.find()[:4] == CPUS
    with pytest.raises(DeviceError, match="'fpga'"):
        devices.find("fpga")


def test_split_cpu_again_into_as_many_does_nothing(monkeypatch):
    monkeypatch.delattr(tf.config, "set_logical_device_configuration")
    assert devices.split_cpu(4) == CPUS


def test_split_cpu_after_the_start_says_what_to_move_where():
    with pytest.raises(
        DeviceError, match=r"into 3 devices, but TensorFlow has already started with 4.*split_cpu\(3\).*top"
    ):
        devices.split_cpu(3)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "4", 100_000])
def test_split_cpu_into_a_senseless_number(n):
    with pytest.raises(DeviceError, match="1 to 256"):
        devices.split_cpu(n)


def test_cpu_n_splits_the_cpu_of_a_fresh_process(run_python):
    result = run_python(
        """
        import json
        from mirrorkit import devices
        split = devices.resolve("cpu:3")
        try:
            devices.resolve("cpu:5")
        except devices.layout.DeviceError as error:
            message = str(error)
        print(json.dumps([split, [d.name for d in devices.verify().devices], message, devices.resolve("cpu:2")]))
        """
    )
    split, verified, message, first_two = result.json()
    assert split == verified == list(CPUS[:3])
    assert "already started with 3" in message
    assert first_two == list(CPUS[:2])


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("cpu", CPUS),
        ("cpu:2", CPUS[:2]),
        (" CPU:4 ", CPUS),
        (["cpu:3", "CPU:1"], (CPUS[3], CPUS[1])),
        (("/cpu:0", "/job:localhost/replica:0/task:0/device:CPU:2"), (CPUS[0], CPUS[2])),
    ],
)
def test_resolve(written, names):
    assert devices.resolve(written) == names


@no_gpu
def test_resolve_none_is_one_cpu_where_there_is_no_gpu():
    assert devices.resolve(None) == CPUS[:1]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("cpu:0", "0 CPUs asked"),
        (0, "0 GPUs asked"),
        (-2, "-2 GPUs asked"),
        ("cpu:9", "started with 4"),
        ("four", "'four' is not understood"),
        (True, "not understood"),
        (2.0, "not understood"),
        ([], "not understood"),
        ([0, 1], "not understood"),
        ("tpu", "Any TPUs asked, 0 found"),
        (["cpu:0", "cpu:7"], "cpu:7 asked, found: /device:CPU:0"),
        (["notcpu:0"], "notcpu:0 asked"),
        (["cpu:1", "/device:CPU:1"], "twice"),
    ],
)
def test_resolve_refuses_what_is_not_there_or_cannot_be_read(written, message):
    with pytest.raises(DeviceError, match=message):
        devices.resolve(written)


@pytest.fixture
def two_gpus(monkeypatch):
    """Two physical GPUs as TensorFlow's own functions would show them, the first one split into two."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(2)]
    layouts = {gpus[0].name: ["half", "half"]}
    logical = [SimpleNamespace(name=f"/device:GPU:{i}") for i in range(3)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else ["cpu"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda d: layouts.get(d.name))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: logical if kind == "GPU" else [])


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_counted_and_missing_ones_refused():
    assert devices.resolve(None) == ("/device:GPU:0", "/device:GPU:1", "/device:GPU:2")
    assert devices.resolve(2) == devices.resolve("gpu:2") == ("/device:GPU:0", "/device:GPU:1")
    with pytest.raises(DeviceError, match=r"4 GPUs asked, 3 found: /device:GPU:0.*devices='cpu:4'"):
        devices.resolve(4)


@pytest.mark.usefixtures("two_gpus")
def test_parts_of_one_gpu_share_hardware_and_two_gpus_do_not():
    assert devices.share_hardware(["/device:GPU:0", "/device:GPU:1"])
    assert not devices.share_hardware(["/device:GPU:1", "/device:GPU:2"])
    assert not devices.share_hardware(["/device:GPU:0"])


def test_virtual_cpus_share_hardware():
    assert devices.share_hardware(CPUS[:2])


@pytest.mark.usefixtures("two_gpus")
def test_memory_growth_is_set_on_every_gpu(monkeypatch):
    grown = []
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, enable: grown.append((gpu.name, enable))
    )
    assert devices.set_memory_growth() == 2
    assert grown == [("/physical_device:GPU:0", True), ("/physical_device:GPU:1", True)]


@pytest.mark.usefixtures("two_gpus")
def test_memory_growth_too_late_says_what_to_move_where(monkeypatch):
    def too_late(gpu, enable):
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", too_late)
    with pytest.raises(DeviceError, match=r"after being initialized.*top of the program"):
        devices.set_memory_growth()


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
    with pytest.raises(DeviceError, match=r"^/device:CPU:2: the .* is wrong by up to 0\.5") as caught:
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
    with pytest.raises(
        DeviceError, match=r"CPU:1: the matrix product is wrong by up to nan.*\n.*CPU:3: .*out of order"
    ):
        devices.verify()


def test_verify_finds_work_that_ran_elsewhere(monkeypatch):
    original = tf.linalg.matmul

    def on_cpu_0(a, b):
        with tf.device("/device:CPU:0"):
            return original(a, b)

    monkeypatch.setattr(tf.linalg, "matmul", on_cpu_0)
    with pytest.raises(DeviceError, match=r"CPU:1: the matrix product ran on .*CPU:0 instead"):
        devices.verify()


@no_gpu
def test_require_gpu_fails_without_one(monkeypatch):
    monkeypatch.setattr(verification, "_nvidia_smi", list)
    with pytest.raises(DeviceError, match=r"At least 1 GPU required, 0 found: none.*scheduler"):
        devices.verify(require="gpu")


@no_gpu
def test_require_gpu_tells_of_gpus_that_tensorflow_does_not_use(monkeypatch):
    monkeypatch.setattr(verification, "_nvidia_smi", lambda: [["NVIDIA X", "1000", "555.1"]] * 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DeviceError, match=r"The driver has 2 GPU\(s\).*CUDA_VISIBLE_DEVICES \(now '7'\).*and-cuda"):
        devices.verify(require="gpu:2")


def test_require_counts():
    with pytest.raises(DeviceError, match="At least 5 CPU required, 4 found: /device:CPU:0"):
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
    report = devices.Report((gpu,), tensorflow="2", keras="3", cuda="12.5", cudnn="9", driver="565.57.01")
    assert "NVIDIA H200, 140.4 GiB, compute capability 9.0" in str(report)
    assert "built for CUDA 12.5 and cuDNN 9, NVIDIA driver 565.57.01" in str(report)


@pytest.mark.parametrize(("own", "expected"), [(None, max(1, (os.cpu_count() or 1) // 4)), (3, 3)])
def test_virtual_devices_share_the_cores_unless_the_program_says_otherwise(run_python, own, expected):
    result = run_python(
        f"""
        import json
        import tensorflow as tf
        from mirrorkit import devices
        if {own}:
            tf.config.threading.set_intra_op_parallelism_threads({own})
        devices.split_cpu(4)
        print(json.dumps(tf.config.threading.get_intra_op_parallelism_threads()))
        """,
        env={"TF_NUM_INTRAOP_THREADS": None},
    )
    assert result.json() == expected


@pytest.mark.parametrize("value", ["0", "1"])
def test_whether_tensorflow_uses_onednn_is_asked_of_tensorflow(run_python, value):
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("TensorFlow is built with oneDNN's operations for x86 only")
    code = "from mirrorkit.devices import onednn, verify; print(onednn.enabled(), 'oneDNN on' in str(verify()))"
    answer = run_python(code, env={onednn.VARIABLE: value}).stdout.split()
    assert answer == [str(value == "1")] * 2


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
