"""Conclusions about GPUs, from facts of machines that are not here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mirrorkit.doctor.finding import Finding
from mirrorkit.doctor.gpus import Facts, findings

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
