"""Parameter servers and their workers: one core, a signal while others need them, tasks that never come."""

from __future__ import annotations

import os
import signal
import sys

import jobs
import pytest

import mirrorkit as mk
from mirrorkit.errors import ClusterError

ON_ONE_CORE = (
    "import os, runpy, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); sys.argv = sys.argv[1:]; "
)
ON_ONE_CORE += "runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a core")
def test_tasks_that_may_use_one_core_train(tmp_path):
    # TensorFlow takes one thread for operations there, which waits for the other task for ever
    command = ("-c", ON_ONE_CORE, jobs.SERVERS, tmp_path / "saved", 1, 0)
    with jobs.started(tmp_path, *command, workers=1, ps=1) as tasks:
        assert tasks["chief"].end() == 0, tasks["chief"].text[-3000:]
        assert tasks["chief"].says("^done 40 40 ")
        assert [tasks[name].end() for name in ("worker 0", "ps 0")] == [0, 0]


@pytest.mark.slow
def test_ctrl_c_to_all_tasks_lets_the_chief_save_before_its_servers_leave(tmp_path):
    with jobs.launched(tmp_path, "--workers", 1, "--ps", 1, jobs.SERVERS, tmp_path / "saved", 1000, 0.2) as job:
        job.wait_for("epoch 1 ")
        jobs.send(job.process.pid, signal.SIGINT)
        assert job.end() == 128 + signal.SIGINT
    assert job.says(r"chief \| .*SIGINT: saved in")
    assert not job.says("ClusterError")
    assert not job.says(r"^launch \| .*ended with"), "the tasks left in peace"


@pytest.mark.slow  # a process of its own
def test_a_server_whose_chief_never_came_leaves_on_sigterm(tmp_path):
    code = "import logging, mirrorkit as mk; logging.basicConfig(level='INFO'); mk.strategy.create('auto')"
    config = jobs.layout.clusters(1, ps=1)["ps 0"].to_tf_config()
    with jobs.process(tmp_path, sys.executable, "-c", code, TF_CONFIG=config) as server:
        server.wait_for("serving until the chief")
        jobs.send(server.process.pid, signal.SIGTERM)
        assert server.end() == 128 + signal.SIGTERM


def test_tasks_that_never_come_are_named():
    cluster = jobs.layout.clusters(2, ps=1)["chief"]
    with pytest.raises(ClusterError, match="start_timeout") as caught:
        mk.strategy.create("parameter_server", cluster=cluster, start_timeout=0.5)
    for name, address in [("worker 0", cluster.workers[0]), ("worker 1", cluster.workers[1]), ("ps 0", cluster.ps[0])]:
        assert f"{name} ({address})" in str(caught.value)
