"""Conclusions about GPUs, from facts of machines that are not here."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mirrorkit.doctor.gpus import Facts, findings

H200 = ("NVIDIA H200", "143771", "0")
BUSY = ("NVIDIA H200", "143771", "90000")
LOG = (
    "I0000 00:00:1795388353.70 13845 port.cc:153] oneDNN custom operations are on.\n"
    "W0000 00:00:1795388353.71 13845 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make sure they are.\n"
)
NO_DRIVER = (
    "I0000 00:00:1795388353.70 13845 cudart_stub.cc:31] Could not find cuda drivers on your machine.\n"
    "E0000 00:00:1795388355.39 13845 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN (303)\n"
)
TWO: dict[str, Any] = {"driver": [H200, H200], "device_files": 2, "tensorflow": 2, "built_with_cuda": True}
NO_GPU = {**TWO, "driver": [], "device_files": 0, "tensorflow": 0}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (NO_GPU, [("GPUs", "ok", "none in this machine", "")]),
        ({**NO_GPU, "visible": ""}, [("GPUs", "ok", "none", "")]),
        (TWO, [("GPUs", "ok", "2 in", ""), ("GPU memory", "ok", "free; TensorFlow takes all", "")]),
        ({**TWO, "growth": True}, [("GPUs", "ok", "2", ""), ("GPU memory", "ok", "grows as needed", "")]),
        (
            {**TWO, "tensorflow": 0, "log": LOG},
            [("GPUs", "failure", "uses 0 of 2: the GPU libraries do not load; TensorFlow says: Cannot dl", "and-cuda")],
        ),
        (
            {**TWO, "tensorflow": 0, "log": NO_DRIVER},
            [("GPUs", "failure", "the driver's library does not load; .*: Could not .*; failed call", "--gpus all")],
        ),
        ({**TWO, "tensorflow": 0, "built_with_cuda": False}, [("GPUs", "failure", "for the CPU alone", "and-cuda")]),
        ({**TWO, "tensorflow": 0, "visible": ""}, [("GPUs", "warning", "='' hides 2 of 2", "Unset CUDA_VIS")]),
        ({**TWO, "tensorflow": 0, "visible": "-1"}, [("GPUs", "warning", "hides 2 of 2", "Unset")]),
        ({**TWO, "tensorflow": 0, "visible": "7"}, [("GPUs", "warning", "='7' hides 2 of 2", "their numbers")]),
        (
            {**TWO, "tensorflow": 1, "visible": "1"},
            [("GPUs", "warning", "hides 1 of 2", "Unset"), ("GPU memory", "ok", "free", "")],
        ),
        # Slurm or a container leaves one of them
        (
            {**TWO, "driver": [H200], "device_files": 8, "tensorflow": 1},
            [("GPUs", "ok", "1 in", ""), ("GPU memory", "ok", "free", "")],
        ),
        # The busy one is another's
        (
            {**TWO, "driver": [BUSY, H200], "tensorflow": 1, "visible": "1"},
            [("GPUs", "warning", "hides 1 of 2", "Unset"), ("GPU memory", "ok", "free", "")],
        ),
        # It names both, so it is not what hides them
        ({**TWO, "tensorflow": 0, "visible": "0,1"}, [("GPUs", "failure", "libraries do not load", "and-cuda")]),
        (
            {**TWO, "tensorflow": 0, "driver": []},
            [("GPUs", "failure", "nvidia-smi finds none.*2 ", "--gpus all")],
        ),
        (
            {**TWO, "driver": [H200, BUSY]},
            [("GPUs", "ok", "2", ""), ("GPU memory", "warning", "H200: 90000 of 143771 MiB", "ALLOW_GROWTH=true")],
        ),
        (
            {**TWO, "driver": [H200, BUSY], "growth": True},
            [("GPUs", "ok", "2", ""), ("GPU memory", "ok", "beside other processes", "")],
        ),
        (
            {**TWO, "workers_here": 2},
            [
                ("GPUs", "ok", "2", ""),
                ("GPU memory", "failure", "each of the 2 workers .* all 2 GPUs", "--gpus-per-task"),
                ("GPU memory", "ok", "free", ""),
            ],
        ),
        (
            {**TWO, "workers_here": 2, "visible": "0,1"},
            [("GPUs", "ok", "2", ""), ("GPU memory", "ok", "free", "")],
        ),
        ({**TWO, "driver": [("L4", "[N/A]", "[N/A]")] * 2}, [("GPUs", "ok", "2", ""), ("GPU memory", "ok", "", "")]),
    ],
)
def test_facts_and_conclusions(facts, expected):
    found = list(findings(Facts(**facts)))
    assert [(f.name, f.status) for f in found] == [e[:2] for e in expected]
    for finding, (_, _, words, cure) in zip(found, expected, strict=True):
        assert re.search(words, finding.found)
        assert cure in finding.cure
        assert bool(finding.cure) == (finding.status != "ok")


def test_the_log_of_an_older_tensorflow_is_read_too():
    log = "2024-11-22 10:00:00.1: W tensorflow/core/gpu_device.cc:2343] Cannot dlopen some GPU libraries. Please see.\n"
    (found,) = findings(Facts(**{**TWO, "tensorflow": 0, "log": log}))
    assert found.found.endswith("; TensorFlow says: Cannot dlopen some GPU libraries. Please see")


def test_what_tensorflow_logs_of_other_things_is_left_out():
    (found,) = findings(Facts(**{**TWO, "tensorflow": 0, "log": LOG}))
    assert "oneDNN" not in found.found
