"""What is checked before parameter servers start; tests/train/parameter_server runs them."""

from __future__ import annotations

import os

import pytest

import mirrorkit as mk
from mirrorkit.errors import ClusterError, StrategyError
from mirrorkit.strategy import parameter_server

TASKS = {"workers": ("a:1",), "ps": ("b:1",)}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"cluster": mk.cluster.Cluster(workers=("a:1", "b:1"))}, StrategyError, "needs a cluster with a chief.*found"),
        ({"cluster": mk.cluster.Cluster(**TASKS, chief="c:1"), "devices": "cpu:2"}, StrategyError, "Leave devices out"),
        ({"cluster": mk.cluster.Cluster(**TASKS)}, ClusterError, "Add the chief's address"),
        (
            {"cluster": mk.cluster.Cluster(**TASKS, chief="c:1", task_type="evaluator")},
            ClusterError,
            "one chief, which",
        ),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused_before_it_waits_for_anyone(options, kind, message):
    with pytest.raises(kind, match=message):
        mk.strategy.create("parameter_server", **options)


def test_outside_of_a_cluster_it_says_how_to_start_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(StrategyError, match=r"this process is not in a cluster\. Start the script with"):
        mk.strategy.create("parameter_server")


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
