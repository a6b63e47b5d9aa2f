"""Something happens to a worker: the others say who it was, and after a restart the run ends as if nothing had."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from launching import environment, launched

import mirrorkit as mk
from mirrorkit.errors import ClusterError
from mirrorkit.launch import layout

SCRIPT = Path(__file__).with_name("interrupted_training.py")


@contextlib.contextmanager
def workers(folder: Path, *arguments: str, count: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the script as workers without a launcher; none is left at the end."""
    processes = []
    try:
        for name, own in layout.environments(layout.clusters(count), environ=environment(TMPDIR=str(folder))).items():
            with open(folder / f"{name}.out", "w") as out:
                command = [sys.executable, str(SCRIPT), str(folder), *arguments]
                processes.append(subprocess.Popen(command, env=own, stdout=out, stderr=subprocess.STDOUT, text=True))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def end(folder: Path, worker: int) -> list[np.ndarray]:
    with np.load(folder / f"end{worker}.npz") as file:
        return [file[name] for name in file.files]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    folder = tmp_path_factory.mktemp("undisturbed")
    launched(SCRIPT, folder, folder=folder)
    return end(folder, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "worker", "what"),
    [
        ("kill", 1, "is gone"),
        ("kill", 0, "is gone"),
        ("raise", 1, "is gone"),
        ("stop", 1, "has stopped answering"),
        ("stop", 0, "has stopped answering"),
    ],
)
def test_the_others_name_a_worker_that_is_lost_within_30_seconds(tmp_path, event, worker, what):
    options = ("--event", event, "--worker", str(worker), "--step", "5", "--no-checkpoints")
    with workers(tmp_path, *options) as processes:
        other = processes[1 - worker]
        assert other.wait(240) == 1
        seconds = time.time() - float((tmp_path / "happened").read_text())
        said = (tmp_path / f"worker {1 - worker}.out").read_text()
    assert f"ClusterError: worker {worker} (127.0.0.1:" in said
    assert f") {what}, and the other workers cannot go on without it" in said
    assert seconds < 90  # 10 and the end of the process where the machine has nothing else to do


@pytest.mark.slow
def test_of_three_workers_the_one_that_is_lost_is_named(tmp_path):
    with workers(tmp_path, "--event", "kill", "--worker", "2", "--step", "5", count=3) as processes:
        assert [process.wait(240) for process in processes] == [1, 1, -signal.SIGKILL]
    said = [(tmp_path / f"worker {i}.out").read_text() for i in (0, 1)]
    assert all("worker 2 (127.0.0.1:" in text for text in said)


@pytest.mark.slow
@pytest.mark.parametrize(("event", "worker", "step"), [("kill", 1, 31), ("kill", 0, 18), ("term", 1, 44)])
def test_a_run_that_is_interrupted_and_restarted_ends_with_the_same_bits(tmp_path, undisturbed, event, worker, step):
    options = ("--event", event, "--worker", worker, "--step", step)
    done = launched("--max-restarts", 1, SCRIPT, tmp_path, *options, folder=tmp_path)
    assert "launch | restart 1 of 1" in done.stderr
    for i in (0, 1):
        for a, b in zip(end(tmp_path, i), undisturbed, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1])
def test_sigterm_to_one_worker_saves_on_all_and_they_leave(tmp_path, worker):
    with workers(tmp_path, "--event", "term", "--worker", str(worker), "--step", "20") as processes:
        assert [process.wait(240) for process in processes] == [143, 143]
    said = [(tmp_path / f"worker {i}.out").read_text() for i in (0, 1)]
    assert all("SIGTERM: saved in" in text for text in said)
    newest = max(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert newest == "step-0000000020.npz"  # the end of the call in which the signal came


def test_a_worker_that_never_comes_is_named():
    cluster = layout.clusters(2)["worker 0"]
    named = re.escape(f"worker 1 ({cluster.workers[1]}) did not start within 0.5 s; 1 of 2 tasks are")
    with pytest.raises(ClusterError, match=named):
        mk.strategy.create("multi_worker", cluster=cluster, start_timeout=0.5)


@pytest.mark.slow
def test_a_port_in_use_is_named(run_python):
    cluster = layout.clusters(2)["worker 0"]
    host, _, port = cluster.workers[0].rpartition(":")
    with socket.create_server((host, int(port))):
        result = run_python(
            "import mirrorkit as mk; mk.strategy.create('auto')",
            env={"TF_CONFIG": cluster.to_tf_config()},
            check=False,
        )
    assert f"worker 0 is to listen at port {port}" in result.stderr


@pytest.mark.slow
def test_tensorflow_that_started_before_and_a_second_strategy_are_refused(run_python):
    cluster = layout.clusters(1)["worker 0"]
    result = run_python(
        """
        import json
        import mirrorkit as mk
        mk.strategy.create("multi_worker")
        try:
            mk.strategy.create("multi_worker")
        except mk.errors.StrategyError as error:
            print(json.dumps(str(error)))
        """,
        env={"TF_CONFIG": cluster.to_tf_config()},
    )
    assert "already made the strategy of worker 0 of 1 worker" in result.json()
    result = run_python(
        """
        import json
        import tensorflow as tf
        import mirrorkit as mk
        tf.constant(1.0)
        try:
            mk.strategy.create("multi_worker")
        except mk.errors.StrategyError as error:
            print(json.dumps(str(error)))
        """,
        env={"TF_CONFIG": cluster.to_tf_config()},
    )
    assert "top of the program" in result.json()
