"""What the doctor finds out in processes of its own, of GPUs, and how it says it."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from mirrorkit import devices
from mirrorkit.devices import onednn
from mirrorkit.doctor import probe
from mirrorkit.doctor.finding import Finding, guarded, of_message
from mirrorkit.doctor.gpus import Facts, findings
from mirrorkit.errors import ClusterError

# --- what the doctor asks of TensorFlow: of a stand-in or the real one in a child process, and in this process


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
        "^the process that loads TensorFlow ended with -4, without an answer$",
        "lacks AVX",
    ),
    "says why it ends": (
        "import os, sys; print('no space for tables', file=sys.stderr, flush=True); os._exit(3)",
        r"^the process that loads TensorFlow ended with 3, without an answer\nno space for tables$",
        "TensorFlow's own",
    ),
    "ends as if all were well": (
        "import os; os._exit(0)",
        "^the process that loads TensorFlow ended with 0, without an answer$",
        "--force-reinstall",
    ),
    "hangs": ("import time; time.sleep(60)", "gave no answer within 0.5 s", "hang"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_tensorflow_that_does_not_load_is_named_in_time(distribution, monkeypatch, case):
    code, found, cure = BROKEN[case]
    noise = "import atexit; atexit.register(print, 'more'); print('noise', end='')"
    distribution("tensorflow", "2.21.0", code=f"{noise}; {code}")
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


# --- conclusions about GPUs, from facts of machines that are not here


LOG = (
    "I0000 00:00:1795388353.70 13845 port.cc:153] oneDNN custom operations are on.\n"
    "W0000 00:00:1795388353.71 13845 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make sure they are.\n"
)
NO_DRIVER = (
    "I0000 00:00:1795388353.70 13845 cudart_stub.cc:31] Could not find cuda drivers on your machine.\n"
    "E0000 00:00:1795388355.39 13845 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN (303)\n"
)
TWO: dict[str, Any] = {"driver": 2, "device_files": 2, "tensorflow": 2, "built_with_cuda": True}
NONE_USED = {**TWO, "tensorflow": 0}
NO_GPU = {**NONE_USED, "driver": 0, "device_files": 0}
OK = ("GPUs", "ok", "2 in", "")


def conclusions(
    facts: dict[str, Any], *, log: str = "", visible: str | None = None, workers_here: int = 1
) -> list[Finding]:
    return list(findings(Facts(**facts), log=log, visible=visible, workers_here=workers_here))


@pytest.mark.parametrize(
    ("facts", "others", "expected"),
    [
        (NO_GPU, {}, ("GPUs", "ok", "none in this machine", "")),
        (NO_GPU, {"visible": ""}, ("GPUs", "ok", "none", "")),
        (TWO, {}, OK),
        (TWO, {"workers_here": 2, "visible": "0,1"}, OK),
        (NONE_USED, {"log": LOG}, ("GPUs", "failure", "uses 0 of 2; it says: Cannot dlopen", "and-cuda")),
        (NONE_USED, {"log": NO_DRIVER}, ("GPUs", "failure", "Could not .*; failed call", "--gpus all")),
        ({**NONE_USED, "driver": 0}, {"log": LOG}, ("GPUs", "failure", "uses 0 of 2", "Elsewhere repair the driver")),
        (
            {**NO_GPU, "device_files": 1, "built_with_cuda": False},
            {},
            ("GPUs", "failure", "0 of 1; .* CPU", "and-cuda"),
        ),
        ({**NONE_USED, "built_with_cuda": False}, {}, ("GPUs", "failure", "for the CPU alone", "and-cuda")),
        (NONE_USED, {"visible": ""}, ("GPUs", "warning", "='' hides 2 of 2", "Unset CUDA_VIS")),
        (NONE_USED, {"visible": "-1"}, ("GPUs", "warning", "hides 2 of 2", "Unset")),
        (NONE_USED, {"visible": "7"}, ("GPUs", "warning", "='7' hides 2 of 2", "their numbers")),
        ({**TWO, "tensorflow": 1}, {"visible": "1"}, ("GPUs", "warning", "hides 1 of 2", "Unset")),
        # Slurm or a container leaves one of them
        ({**TWO, "driver": 1, "device_files": 8, "tensorflow": 1}, {}, ("GPUs", "ok", "1 in", "")),
        # It names both, so it is not what hides them
        (NONE_USED, {"visible": "0,1"}, ("GPUs", "failure", "uses 0 of 2", "and-cuda")),
    ],
)
def test_facts_and_conclusions(facts, others, expected):
    (finding,) = conclusions(facts, **others)
    *what, words, cure = expected
    assert [finding.name, finding.status] == what
    assert re.search(words, finding.found)
    assert cure in finding.cure
    assert bool(finding.cure) == (finding.status != "ok")


def test_workers_that_would_share_all_gpus_are_named():
    used, memory = conclusions(TWO, workers_here=2)
    assert (used.status, memory.name, memory.status) == ("ok", "GPU memory", "failure")
    assert memory.found == "each of the 2 workers on this machine would take all 2 GPUs"
    assert "srun --gpus-per-task=1" in memory.cure


@pytest.mark.parametrize(("capability", "has_kernels"), [("8.6", True), ("9.0", True), ("12.0", False)])
def test_a_gpu_newer_than_tensorflow_is_named(capability, has_kernels):
    built_for = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90a"]  # TensorFlow 2.21 has "compute_90"
    used, *others = conclusions({**TWO, "capabilities": ["8.0", capability], "built_for": built_for})
    assert used.status == "ok"
    assert len(others) == (not has_kernels)
    for finding in others:
        assert finding.found.startswith("compute capability 12.0; this TensorFlow has kernels for sm_60")
        assert "newer TensorFlow" in finding.cure


def test_the_log_of_an_older_tensorflow_is_read_too():
    log = "2024-11-22 10:00:00.1: W tensorflow/core/gpu_device.cc:2343] Cannot dlopen some GPU libraries. Please see.\n"
    (found,) = conclusions(NONE_USED, log=log)
    assert found.found.endswith("; it says: Cannot dlopen some GPU libraries. Please see")


def test_what_tensorflow_logs_of_other_things_is_left_out():
    (found,) = conclusions(NONE_USED, log=LOG)
    assert "oneDNN" not in found.found


def test_the_findings_of_a_check_come_through():
    found = [Finding("a", "ok", "1"), Finding("a", "warning", "2", "cure")]
    assert guarded("a", lambda: found, seconds=5) == found


def test_a_check_that_raises_is_a_failure_of_its_name_with_what_it_found_before():
    def check():
        yield Finding("disk", "ok", "the first half")
        raise ZeroDivisionError("by zero")

    first, second = guarded("disk", check, seconds=5)
    assert first.found == "the first half"
    assert (second.name, second.status) == ("disk", "failure")
    assert "ZeroDivisionError: by zero" in second.found
    assert second.cure


def test_an_error_of_mirrorkit_gives_what_was_found_and_the_cure():
    def check():
        raise ClusterError("Port 7 is in use. End the earlier run.")

    assert guarded("port", check, seconds=5) == [
        Finding("port", "failure", "Port 7 is in use.", "End the earlier run.")
    ]


def test_a_check_that_hangs_is_a_failure_and_what_comes_after_goes_on():
    answer = threading.Event()
    (found,) = guarded("data", lambda: [Finding("late", "ok", str(answer.wait(20)))], seconds=0.1)
    assert (found.name, found.status) == ("data", "failure")
    assert found.found == "The check of data has not answered for 0.1 s."
    answer.set()


@pytest.mark.parametrize(
    ("message", "found", "cure"),
    [
        ("One is 1. Two. Three.", "One is 1.", "Two. Three."),
        ("No answer within 1.5 s for a.b (x). Look.", "No answer within 1.5 s for a.b (x).", "Look."),
        ("None found: none. nvidia-smi shows it.", "None found: none.", "nvidia-smi shows it."),
        ("Only this", "Only this", "the usual"),
    ],
)
def test_the_first_sentence_of_a_message_is_what_was_found(message, found, cure):
    assert of_message("x", "failure", message, cure="the usual") == Finding("x", "failure", found, cure)
