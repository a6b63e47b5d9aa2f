from __future__ import annotations

import pytest

from mirrorkit.cluster import detect
from mirrorkit.errors import ArgumentError, ClusterError
from mirrorkit.launch import layout


def gpus_of(workers, asked, *, gpus="0,1,2,3", **tasks):
    environ = {"CUDA_VISIBLE_DEVICES": gpus}
    found = layout.environments(layout.clusters(workers, **tasks), devices_per_worker=asked, environ=environ)
    return {name: own["CUDA_VISIBLE_DEVICES"] for name, own in found.items()}


def test_every_task_finds_the_same_cluster_and_its_own_place():
    tasks = layout.clusters(2, ps=1)
    assert list(tasks) == ["chief", "worker 0", "worker 1", "ps 0"]
    found = {name: detect(own) for name, own in layout.environments(tasks, environ={}).items()}
    assert [cluster.task for cluster in found.values()] == list(tasks)
    assert len({tuple(cluster.addresses.items()) for cluster in found.values()}) == 1
    assert list(layout.clusters(2)) == ["worker 0", "worker 1"]
    assert list(layout.clusters(1, chief=True)) == ["chief", "worker 0"]


def test_all_tasks_of_a_job_have_the_same_token_and_no_other_job_has_it():
    def tokens(**environ):
        return {own["MIRRORKIT_JOB_TOKEN"] for own in layout.environments(layout.clusters(3), environ=environ).values()}

    (one,), (other,) = tokens(), tokens()
    assert one != other
    assert len(one) == len(other) == 64
    assert tokens(MIRRORKIT_JOB_TOKEN="mine") == {"mine"}
    with pytest.raises(ClusterError, match="MIRRORKIT_JOB_TOKEN"):
        tokens(MIRRORKIT_JOB_TOKEN="")


def test_workers_share_the_cores_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(layout.processor, "cores", lambda: 8)

    def threads(tasks, **environ):
        return {own["TF_NUM_INTRAOP_THREADS"] for own in layout.environments(tasks, environ=environ).values()}

    assert threads(layout.clusters(2)) == {"4"}
    assert threads(layout.clusters(2, chief=True)) == {"2"}  # the chief trains too
    assert threads(layout.clusters(2, ps=1)) == {"4"}  # here it coordinates
    assert threads(layout.clusters(20)) == {"1"}
    assert threads(layout.clusters(2), TF_NUM_INTRAOP_THREADS="3") == {"3"}


def test_gpus_are_shared_out_or_hidden():
    assert gpus_of(2, None) == {"worker 0": "0,1", "worker 1": "2,3"}
    assert gpus_of(2, "gpu:1") == {"worker 0": "0", "worker 1": "1"}
    assert gpus_of(2, "cpu") == gpus_of(2, "cpu:1") == {"worker 0": "-1", "worker 1": "-1"}
    assert gpus_of(2, None, gpus="5") == {"worker 0": "-1", "worker 1": "-1"}  # not enough for all
    assert gpus_of(1, "gpu:1", ps=1) == {"chief": "-1", "worker 0": "0", "ps 0": "-1"}
    assert gpus_of(1, "gpu:1", chief=True, gpus="7,5") == {"chief": "7", "worker 0": "5"}
    assert gpus_of(1, None, gpus="-1") == {"worker 0": "-1"}


@pytest.mark.parametrize(
    ("workers", "asked", "message"),
    [
        (2, "gpu:3", "6, but 4 were found"),
        (2, "cpu:4", "split the CPU"),
        (2, "gpu:0", "not understood"),
        (2, "tpu", "not understood"),
    ],
)
def test_an_impossible_job_is_an_error(workers, asked, message):
    with pytest.raises(ClusterError, match=message) as caught:
        gpus_of(workers, asked)
    at_fault_is_the_argument = "were found" not in message
    assert isinstance(caught.value, ArgumentError) == at_fault_is_the_argument
