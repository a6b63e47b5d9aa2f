"""The tasks of a job: their settings, slots and lines."""

from __future__ import annotations

import collections
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mirrorkit.cluster import detect
from mirrorkit.errors import ArgumentError, ClusterError, JobError
from mirrorkit.launch import layout, slots


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


# --- the lines of tasks: nobody may read them any more, and processes that have left the group may go on printing


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_job_goes_on_when_nobody_reads_its_lines_any_more(script, started, tmp_path, terminal):
    code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('closed'): time.sleep(0.01)\n"
    code += "for _ in range(20000): print('x' * 100)\nopen('done', 'w').close()"
    reads, writes = os.openpty() if terminal else os.pipe()
    process = started("--workers", 1, script(code), stdout=writes)
    os.close(writes)
    with open(reads, "rb") as lines:
        assert lines.readline().rstrip() == b"worker 0 | first"
    (tmp_path / "closed").touch()
    assert process.wait(20) == 0, process.stderr.read()
    assert (tmp_path / "done").exists()


def test_a_line_without_end_is_printed_in_parts(script, started):
    code = "import sys\nfor _ in range(64): sys.stdout.write('x' * 2**20)\nprint(flush=True)"
    process = started("--workers", 1, script(code))
    lines = 0
    for line in process.stdout:
        assert line.startswith("worker 0 | ")
        assert len(line) < 2**17, "the launcher would hold all of it"
        lines += 1
    assert lines >= 1024
    assert process.wait(20) == 0, process.stderr.read()


@pytest.mark.slow
def test_the_launcher_exits_while_processes_that_it_cannot_end_print(script, started):
    floods = "import subprocess, sys\nlines = 'while True: print(200 * chr(65))'\n"
    floods += "subprocess.Popen([sys.executable, '-c', lines], start_new_session=True)"
    process = started("--workers", 4, script(floods))
    (last,) = collections.deque(process.stdout, maxlen=1)  # all are read; they would take much memory
    assert process.wait(60) == 0, process.stderr.read()
    assert last.endswith("AAAA\n")


def ends(file: Path) -> None:
    """Wait until a process does not write to a file any more."""
    deadline = time.monotonic() + 20
    size = -1
    while size != (size := file.stat().st_size):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.3)


@pytest.mark.parametrize("rest", ["echo 2", "sleep 300", "exit 3", "exec yes"])
def test_a_command_leaves_nothing_that_it_started(rest: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(slots, "_LONGEST", 2.0)
    beats = tmp_path / "beats"
    beats.touch()
    source = f"(while true; do echo >> {beats}; sleep 0.02; done) & {rest}"
    if rest == "echo 2":
        assert slots.count(source) == 2, "though what it has started holds its output open"
    else:
        with pytest.raises(JobError, match=r"has not ended within 2 s|exit status 3"):
            slots.count(source)
    ends(beats)
