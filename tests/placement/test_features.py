"""Every feature of the equivalence table on GPUs that are not there: nothing without a kernel, nothing that waits.

`tests/placement/table.py` makes the table of docs/placement.md from the same.
"""

from __future__ import annotations

import pytest
from subjects import FEATURES, Subject

import mirrorkit as mk


@pytest.mark.parametrize("subject", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("source", ["batches", "resident"])
def test_a_feature_is_clean(subject: Subject, source: str) -> None:
    report = subject.placement(source, devices="gpu:2")
    assert report.problems == []
    assert all(call.to_host == 0 for call in report.calls)
    assert report["train"].step.kernels_on("GPU:1") > 0


def test_on_a_single_gpu_too() -> None:
    report = FEATURES["all at once"].placement("batches", devices="gpu")
    assert report.devices == ["GPU:0"]
    assert report.problems == []
    assert not report["train"].step.reduced


def test_a_resident_set_stays_where_it_is() -> None:
    report = FEATURES["SGD"].placement("resident", devices="gpu:2")
    rows = 8 * 24  # the places of a batch, int64
    assert report["train"].to_devices == rows
    assert mk.checks.placement  # the public name
