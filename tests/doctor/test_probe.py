"""What the doctor asks of TensorFlow: of a stand-in in a child process, and of the real one in this process."""

from __future__ import annotations

import os
import re
import time

import pytest
import tensorflow as tf

from mirrorkit import devices, strategy, train
from mirrorkit.devices import onednn
from mirrorkit.doctor import probe
from mirrorkit.doctor.finding import Finding
from mirrorkit.errors import DeviceError

BROKEN = {
    "cannot be imported": (
        "raise ImportError('libcublas.so.12: cannot open shared object file')",
        "TensorFlow cannot be imported: ImportError: libcublas.so.12: cannot open",
        "--force-reinstall",
    ),
    "ends the process": (
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
        "the process was ended by SIGILL",
        "lacks AVX",
    ),
    "says why it ends": (
        "import os, sys; print('no space for tables', file=sys.__stderr__, flush=True); os._exit(3)",
        r"^the process ended with 3\nno space for tables$",
        "TensorFlow's own",
    ),
    "hangs": ("import time; time.sleep(60)", "gave no answer within 0.5 s", "hang"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_tensorflow_that_does_not_load_is_named_in_time(distribution, monkeypatch, case):
    code, found, cure = BROKEN[case]
    distribution("tensorflow", "2.21.0", code=code)
    if case == "hangs":
        monkeypatch.setattr(probe, "SECONDS", 0.5)
    start = time.monotonic()
    (finding,) = probe.devices(None, None, workers_here=1)
    assert time.monotonic() - start < 20
    assert (finding.name, finding.status) == ("import" if "imported" in case else "devices", "failure")
    assert re.search(found, finding.found), finding.found
    assert cure in finding.cure


def test_a_keras_that_cannot_be_used_is_named(distribution, monkeypatch):
    code = "class config: list_physical_devices = list\n__version__ = '2.21.0'"
    distribution("tensorflow", "2.21.0", code=code)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    loaded, keras = probe.devices(None, None, workers_here=1)
    assert loaded.found.startswith("TensorFlow 2.21.0 in ")
    assert (keras.name, keras.status) == ("import", "failure")
    assert keras.found.startswith("mirrorkit needs Keras 3, but TF_USE_LEGACY_KERAS")
    assert "Unset TF_USE_LEGACY_KERAS" in keras.cure


@pytest.fixture
def in_this_process():
    """`in_this_process(require="gpu")` gives what a child would answer, by the check's name."""

    def findings(**options: object) -> dict[str, list[Finding]]:
        options = {"asked": None, "require": None, "growth": False, "workers_here": 1, **options}
        found: dict[str, list[Finding]] = {}
        for finding in probe.Probe().devices(**options):
            found.setdefault(finding.name, []).append(finding)
        return found

    return findings


def test_every_device_is_tried(in_this_process):
    found = in_this_process(asked="cpu:4")
    assert found["import"][0].found.startswith(f"TensorFlow {tf.__version__} in ")
    names = [finding.found.split()[0] for finding in found["devices"]]
    assert names == list(devices.find())
    assert all(finding.status == "ok" for finding in found["devices"])


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
@pytest.mark.parametrize("visible", [None, ""])
def test_a_gpu_that_is_wanted_and_not_there(in_this_process, monkeypatch, tmp_path, visible):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA X, 1000, 0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = in_this_process(require="gpu")
    (gpus,), (wanted,) = found["GPUs"], found["devices"]
    if visible is None:
        assert gpus.status == "failure"
        assert "not load" in gpus.found or "for the CPU alone; the machine has 1" in gpus.found
        assert gpus.cure
    else:
        assert (gpus.status, gpus.found) == ("warning", "CUDA_VISIBLE_DEVICES='' hides 1 of 1 GPUs")
        assert "Unset CUDA_VISIBLE_DEVICES" in gpus.cure
    assert wanted == Finding("devices", "failure", "At least 1 GPU required, 0 found: none.", wanted.cure)
    assert "The driver has 1 GPU(s) that TensorFlow does not use" in wanted.cure


def test_devices_that_are_not_there_or_wrong_are_named(in_this_process, monkeypatch):
    (found,) = in_this_process(asked="gpu:99")["devices"]
    assert found.status == "failure"
    assert "99 GPUs were asked for" in found.found
    assert "devices='cpu:99'" in found.cure
    monkeypatch.setattr(devices.verification, "_failure", lambda name: f"{name}: the convolution is wrong by up to 3")
    (found,) = in_this_process()["devices"]
    assert (found.status, "CPU:0: the convolution is wrong" in found.found) == ("failure", True)


@pytest.mark.parametrize(
    ("variable", "flags", "enabled", "gpus", "status", "found", "cure"),
    [
        (None, {"avx2"}, False, False, "warning", "TensorFlow left oneDNN off", f"set {onednn.VARIABLE}=1"),
        ("0", {"avx2"}, False, False, "warning", f"off, by {onednn.VARIABLE}=0", f"export {onednn.VARIABLE}=1"),
        (None, {"avx2"}, True, False, "ok", "on", ""),
        (None, {"avx2"}, False, True, "ok", "off, which does not matter here", ""),
        (None, set(), False, False, "ok", "off, which does not matter here", ""),
        (None, {"avx2"}, None, False, "ok", "does not say", ""),
    ],
)
def test_onednn_off_where_it_helps(monkeypatch, variable, flags, enabled, gpus, status, found, cure):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(onednn.VARIABLE, variable)
    monkeypatch.setattr(onednn.processor, "flags", lambda: frozenset(flags))
    monkeypatch.setattr(onednn, "enabled", lambda: enabled)
    finding = probe.onednn(uses_gpus=gpus)
    assert (finding.name, finding.status) == ("oneDNN", status)
    assert found in finding.found
    assert cure in finding.cure


@pytest.fixture
def alone(plain, monkeypatch):
    monkeypatch.setattr(probe, "_LARGE", 4096)


def test_sums_are_checked_and_timed(alone):
    (found,) = probe.Probe().all_reduce(asked="cpu:3", start=1.0)
    assert found.status == "ok"
    assert "3 replicas" in found.found
    assert "sums are exact; 4 KiB in" in found.found
    assert "GB/s" in found.found


def test_one_replica_has_nothing_to_sum(alone):
    (found,) = probe.Probe().all_reduce(asked="cpu:1", start=1.0)
    assert (found.status, "nothing to sum" in found.found) == ("ok", True)


def test_a_wrong_sum_is_named(alone, monkeypatch):
    right = train.all_reduce

    def wrong(message: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        last = tf.one_hot(message.shape[0] - 1, message.shape[0]) * tf.cast(replica == 1, tf.float32)
        return right(message) + last  # one number, on one replica

    monkeypatch.setattr(train, "all_reduce", wrong)
    (found,) = probe.Probe().all_reduce(asked="cpu:2", start=1.0)
    assert found.status == "failure"
    assert "the sum of 4,096 bytes is wrong on 1 of 2 replicas" in found.found
    assert found.cure


def test_a_strategy_that_cannot_be_made_is_named(alone, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise DeviceError("No. Do.")

    monkeypatch.setattr(strategy, "create", refuse)
    assert probe.Probe().all_reduce(asked=None, start=1.0) == [Finding("all-reduce", "failure", "No.", "Do.")]


def test_what_tensorflow_logs_is_read_where_it_goes_to_a_file(tmp_path):
    before = os.dup(2)
    try:
        with open(tmp_path / "log", "wb") as log:
            log.write(b"earlier")
            log.flush()
            os.dup2(log.fileno(), 2)
            size = probe._log_size()
            os.write(2, b"from C++")
            assert probe._log_since(size) == "from C++"
        reading, writing = os.pipe()
        os.dup2(writing, 2)  # nobody may wait for what a pipe brings
        assert (probe._log_size(), probe._log_since(probe._log_size())) == (-1, "")
        os.close(reading)
        os.close(writing)
    finally:
        os.dup2(before, 2)
        os.close(before)
