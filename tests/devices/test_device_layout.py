from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest
import tensorflow as tf

from mirrorkit import devices, processor
from mirrorkit.devices import onednn
from mirrorkit.errors import ArgumentError, DeviceError

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
    with pytest.raises(DeviceError, match=r"started with 4.*split_cpu\(3\)"):
        devices.split_cpu(3)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "4", 100_000])
def test_split_cpu_into_a_senseless_number(n):
    with pytest.raises(DeviceError, match="1 to 256"):
        devices.split_cpu(n)


FRESH = """
import json, os
import tensorflow as tf
from mirrorkit import devices
from mirrorkit.devices import onednn

@tf.function
def doubled_until(limit):
    x = tf.constant(1)
    while x < limit:
        x *= 2
    return x

try:
    devices.resolve("cpu:5")
except devices.layout.DeviceError as error:
    message = str(error)
verification = devices.verify()
print(json.dumps({
    "split": devices.resolve("cpu:3"),
    "doubled": [int(doubled_until(50)), os.listdir(), __name__],
    "message": message,
    "first two": devices.resolve("cpu:2"),
    "verified": [device.name for device in verification.devices],
    "threads": devices.layout.tf.config.threading.get_intra_op_parallelism_threads(),
    "onednn": [onednn.enabled(), "oneDNN on" in str(verification)],
}))
"""


@pytest.mark.slow  # a process of its own; conftest.py splits the CPU of this one
def test_cpu_n_splits_the_cpu_of_a_fresh_process_and_its_cores(run_python):
    """Before the code runs, whose source AutoGraph sees."""
    other = not onednn.enabled()  # than here; None where TensorFlow has no oneDNN
    env = {"TF_NUM_INTRAOP_THREADS": None, onednn.VARIABLE: str(int(other))}
    found = run_python(FRESH, devices="cpu:3", env=env).json()
    assert found["doubled"] == [64, [], "__main__"]
    assert found["split"] == found["verified"] == list(CPUS[:3])
    assert "already started with 3" in found["message"]
    assert found["first two"] == list(CPUS[:2])
    assert found["threads"] == max(1, processor.cores() // 3)
    if platform.machine() in ("x86_64", "AMD64"):  # where TensorFlow has oneDNN's operations
        assert found["onednn"] == [other, other]


@pytest.mark.parametrize(("program", "variable"), [(7, None), (0, "5")])
def test_a_program_that_has_chosen_a_number_of_threads_keeps_it(monkeypatch, program, variable):
    monkeypatch.setattr(devices.layout, "_cpus_laid_out", lambda: 1)
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda cpu, parts: None)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: program)
    monkeypatch.delattr(tf.config.threading, "set_intra_op_parallelism_threads")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", variable)
    assert devices.split_cpu(4) == CPUS


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
        ("cpu:0", "0 CPUs"),
        (0, "0 GPUs"),
        (-2, "-2 GPUs"),
        ("cpu:9", "started with 4"),
        ("four", "'four' is not understood"),
        (True, "not understood"),
        (2.0, "not understood"),
        ([], "not understood"),
        ([0, 1], "not understood"),
        ("tpu", "All TPUs"),
        (["cpu:0", "cpu:7"], "cpu:7 asked for"),
        (["notcpu:0"], "notcpu:0 asked for"),
        (["cpu:1", "/device:CPU:1"], "twice"),
    ],
)
def test_resolve_refuses_what_is_not_there_or_cannot_be_read(written, message):
    with pytest.raises(DeviceError, match=message) as caught:
        devices.resolve(written)
    is_missing = "found: " in str(caught.value) or "started with" in message
    assert isinstance(caught.value, ArgumentError) == (not is_missing)


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
    with pytest.raises(DeviceError, match=r"4 GPUs .*3 found"):
        devices.resolve(4)


@pytest.mark.usefixtures("two_gpus")
def test_parts_of_one_gpu_share_hardware_and_two_gpus_do_not():
    assert devices.share_physical_device(["/device:GPU:0", "/device:GPU:1"])
    assert not devices.share_physical_device(["/device:GPU:1", "/device:GPU:2"])
    assert not devices.share_physical_device(["/device:GPU:0"])


def test_virtual_cpus_share_physical_device():
    assert devices.share_physical_device(CPUS[:2])


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
    with pytest.raises(DeviceError, match="top of the program"):
        devices.set_memory_growth()
