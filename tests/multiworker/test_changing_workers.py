"""Jobs whose number of workers changes, on real digits: nothing is lost, nothing is trained on twice."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from changing_training import apart, problems, result
from jobs import Process, launched
from ray_nodes import RayNodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("MIRRORKIT_DATA"), reason="needs MNIST in $MIRRORKIT_DATA"),
]
SCRIPT = Path(__file__).with_name("changing_training.py")
Run = Callable[..., tuple[dict[str, np.ndarray], Process]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train in a folder of its own; gives what `changing_training.py` has saved at the end."""

    def run(
        *options: object, at: tuple[str, ...] = (), room: int = 3, nodes: RayNodes | None = None
    ) -> tuple[dict[str, np.ndarray], Process]:
        folder = tmp_path_factory.mktemp("run")
        (folder / "room").write_text(str(room))
        environment = {} if nodes is None else nodes.environment
        with launched(folder, *options, SCRIPT, folder, "--at", *at, **environment) as job:
            while nodes is not None and job.process.poll() is None:
                nodes.set(int((folder / "room").read_text() or room))
                time.sleep(0.1)
            assert job.end(300) == 0, job.text[-8000:]
        return result(folder), job

    return run


@pytest.fixture(scope="module")
def undisturbed(run: Run) -> list[dict[str, np.ndarray]]:
    """The results of 1, 2 and 3 workers."""
    return [run("--workers", workers)[0] for workers in (1, 2, 3)]


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(2)
    yield nodes
    nodes.close()


def changes(job: Process) -> list[tuple[int, int, int]]:
    """With how many workers the job went on, from which step, and how many steps it made again."""
    found = re.findall(r"launch \| (\d) workers? from step (\d+) on, .*; (\d+) steps repeated", job.text)
    return [(int(workers), int(step), int(repeated)) for workers, step, repeated in found]


def test_a_worker_lost_two_added_one_taken_away(run: Run, undisturbed: list[dict[str, np.ndarray]]) -> None:
    options = ("--workers", "1:3", "--slots", "room", "--max-restarts", 1)
    found, job = run(*options, at=("100:kill:1", "200:room:3", "300:room:2"), room=2)
    lost, *orderly = changes(job)
    assert lost[:2] == (1, 90)  # the newest checkpoint before the loss
    assert [(workers, repeated) for workers, _, repeated in orderly] == [(3, 0), (2, 0)]  # these saved first
    assert not list(problems(found, undisturbed, 2))
    assert apart(found, undisturbed[0]) > 0


def test_nodes_of_ray_lost_and_added(run: Run, undisturbed: list[dict[str, np.ndarray]], nodes: RayNodes) -> None:
    options = ("--on", "ray", "--workers", "1:3")
    found, job = run(*options, at=("100:nodes:1", "200:nodes:3"), room=2, nodes=nodes)
    assert [workers for workers, *_ in changes(job)] == [1, 3], job.text
    assert changes(job)[0][1] == 90
    assert changes(job)[1][2] == 0  # added nodes: the job saved first
    assert not list(problems(found, undisturbed, 2))
    assert apart(found, undisturbed[0]) > 0


def test_a_worker_that_is_replaced_changes_no_bit(run: Run, undisturbed: list[dict[str, np.ndarray]]) -> None:
    found, _ = run("--workers", "1:2", "--max-restarts", 1, at=("100:kill:0",))
    assert apart(found, undisturbed[1]) == 0
    assert apart(found, undisturbed[0]) > 0
