"""A worker dies at the places of TensorFlow's mwms_peer_failure_test; docs/foreign.md maps each of its tests to one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest

from mirrorkit.launch import layout

pytestmark = pytest.mark.slow  # two workers

# Worker 1 dies the first time that it is here. Each worker prints what it has in the end.
DIES = """
import os
import time
from pathlib import Path

import mirrorkit as mk
import tensorflow as tf

strategy = mk.strategy.create("multi_worker", devices="cpu", start_timeout=200)
me, died = mk.strategy.worker_index(strategy), Path("died")

def die():
    if me == 1 and not died.exists():
        died.touch()
        os._exit(9)
"""
VARIABLE = """
with strategy.scope():
    tf.Variable(1.0)
    die()
    print("value", tf.Variable(tf.random.uniform(())).numpy())
"""
ALL_REDUCE = """
@tf.function
def ones():
    value = tf.ones((64, 64))
    return tf.distribute.get_replica_context().all_reduce("sum", [value, value])

with mk.strategy.naming_lost_workers(strategy):
    strategy.run(ones)
    die()
    while me == 0 and not Path("back").exists():
        time.sleep(0.05)
    print("value", strategy.run(ones)[0].numpy().max())
"""
NAMED = r"ClusterError: worker 1 \(\S+\) (is gone|has stopped answering), and the other workers cannot go on"


class Tasks:
    """Two tasks of one cluster, each started by itself, as often as one likes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = layout.environments(layout.clusters(2), environ=jobs.environment(TMPDIR=str(folder)))
        self.started: list[jobs.Process] = []

    def start(self, worker: int) -> jobs.Process:
        self.started.append(jobs.Process([sys.executable, "script.py"], self._folder, self._own[f"worker {worker}"]))
        return self.started[-1]


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    made = Tasks(tmp_path)
    yield made
    for task in made.started:
        task.close()


def values(*tasks: jobs.Process) -> list[str]:
    return [line.rpartition("value ")[2] for task in tasks for _, line in task.lines if "value " in line]


def test_a_worker_that_dies_before_it_creates_a_variable_is_named_and_both_create_it_when_they_start_again(
    tasks: Tasks, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(DIES + VARIABLE)
    first, second = tasks.start(0), tasks.start(1)
    assert (second.end(), first.end()) == (9, 1)
    assert first.says(NAMED)
    assert not values(first)
    first, second = tasks.start(0), tasks.start(1)
    assert (first.end(), second.end()) == (0, 0)
    one, other = values(first, second)
    assert one == other  # the chief's


def test_a_worker_that_is_back_before_it_was_missed_waits_for_the_other(tasks: Tasks, tmp_path: Path) -> None:
    """Nobody ends worker 0, as where each pod starts again by itself: it ends at its next all-reduce."""
    (tmp_path / "script.py").write_text(DIES + ALL_REDUCE)
    first = tasks.start(0)
    assert tasks.start(1).end() == 9
    second = tasks.start(1)
    (tmp_path / "back").touch()
    assert first.end() == 1
    assert first.says(NAMED)
    assert not values(first)
    first = tasks.start(0)
    assert (first.end(), second.end()) == (0, 0)
    assert values(first, second) == ["2.0", "2.0"]
