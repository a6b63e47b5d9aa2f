"""What is checked before parameter servers start; tests/train/parameter_server runs them."""

from __future__ import annotations

import os

import pytest

from mirrorkit.strategy import parameter_server


@pytest.mark.parametrize(
    ("cores", "given", "threads", "warns"),
    [(1, "", "4", False), (8, "", "", False), (8, "2", "4", True), (1, "6", "6", False), (3, "many", "4", True)],
)
def test_a_serving_task_gets_at_least_four_threads(monkeypatch, caplog, cores, given, threads, warns):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", given)
    monkeypatch.setattr(parameter_server.processor, "cores", lambda: cores)
    parameter_server._raise_threads()
    assert os.environ["TF_NUM_INTEROP_THREADS"] == threads
    assert ("too few" in caplog.text) == warns
