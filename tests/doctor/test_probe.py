"""What the doctor asks of TensorFlow: of a stand-in or the real one in a child process, and in this process."""

from __future__ import annotations

import os
import re
import time

import pytest
import tensorflow as tf

from mirrorkit import devices
from mirrorkit.devices import onednn
from mirrorkit.doctor import probe
from mirrorkit.doctor.finding import Finding

BROKEN = {
    "cannot be imported": (
        "raise ImportError('libcublas.so.12: cannot open shared object file')",
        "^TensorFlow cannot be imported: ImportError: libcublas.so.12: cannot open",
        "--force-reinstall",
    ),
    "of another NumPy": (
        "raise AttributeError('_ARRAY_API not found')",
        "^TensorFlow cannot be imported: AttributeError: _ARRAY_API not found$",
        "--force-reinstall",
    ),
    "ends the process": (
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
        "^the process that loads TensorFlow ended with -4$",
        "lacks AVX",
    ),
    "says why it ends": (
        "import os, sys; print('no space for tables', file=sys.stderr, flush=True); os._exit(3)",
        r"^the process that loads TensorFlow ended with 3\nno space for tables$",
        "TensorFlow's own",
    ),
    "hangs": ("import time; time.sleep(60)", "gave no answer within 0.5 s", "hang"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_tensorflow_that_does_not_load_is_named_in_time(distribution, monkeypatch, case):
    code, found, cure = BROKEN[case]
    distribution("tensorflow", "2.21.0", code=f"print('noise'); {code}")
    if case == "hangs":
        monkeypatch.setattr(probe, "SECONDS", 0.5)
    start = time.monotonic()
    (finding,) = probe.devices(None, workers_here=1)
    assert time.monotonic() - start < 20
    assert (finding.name, finding.status) == ("import" if "imported" in found else "devices", "failure")
    assert re.search(found, finding.found), finding.found
    assert cure in finding.cure


@pytest.mark.parametrize(("variable", "value"), [("KERAS_BACKEND", "jax"), ("TF_USE_LEGACY_KERAS", "1")])
def test_a_keras_that_cannot_be_used_is_named(distribution, monkeypatch, variable, value):
    code = "class config: list_physical_devices = list\n__version__ = '2.21.0'"
    distribution("tensorflow", "2.21.0", code=code)
    monkeypatch.setenv(variable, value)
    loaded, keras = probe.devices(None, workers_here=1)
    assert loaded.found.startswith("TensorFlow 2.21.0 in ")
    assert (keras.name, keras.status) == ("Keras", "failure")
    assert variable in keras.found
    assert variable in keras.cure


@pytest.mark.slow  # TensorFlow itself in a process of its own
@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
def test_a_gpu_that_is_wanted_and_not_there(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA X\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = {finding.name: finding for finding in probe.devices("gpu", workers_here=1)}
    assert found["GPUs"].status == "failure"
    assert re.search("uses 0 of 1; it says: .*cuda|it is built for the CPU alone", found["GPUs"].found)
    assert found["GPUs"].cure
    wanted = found["devices"]
    assert wanted == Finding("devices", "failure", "At least 1 GPU required, 0 found: none.", wanted.cure)


def test_every_device_is_tried(monkeypatch):
    (loaded, *others), _ = probe._answer(None)
    assert loaded.found.startswith(f"TensorFlow {tf.__version__} in ")
    tried = [finding for finding in others if finding.name == "devices"]
    assert [finding.found.split()[0] for finding in tried] == list(devices.find())
    assert all(finding.status == "ok" for finding in tried)
    monkeypatch.setattr(devices.verification, "_failure", lambda name: f"{name}: the convolution is wrong by up to 3")
    (_, wrong, *_), facts = probe._answer(None)
    assert (wrong.name, wrong.status) == ("devices", "failure")
    assert "CPU:0: the convolution is wrong" in wrong.found
    assert facts.tensorflow == len(tf.config.list_physical_devices("GPU"))


@pytest.mark.parametrize(
    ("flags", "enabled", "is_told"),
    [({"avx2"}, False, True), ({"avx2"}, True, False), ({"avx2"}, None, False), (set(), False, False)],
)
def test_onednn_off_where_it_helps(monkeypatch, flags, enabled, is_told):
    monkeypatch.setattr(probe.processor, "flags", lambda: frozenset(flags))
    monkeypatch.setattr(onednn, "enabled", lambda: enabled)
    found = list(probe._onednn())
    assert [(f.name, f.status) for f in found] == [("oneDNN", "warning")] * is_told
    assert all(f"export {onednn.VARIABLE}=1" in finding.cure for finding in found)
