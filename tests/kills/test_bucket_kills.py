"""Two workers whose checkpoints go to an S3 server behind a bad network: killed, they end as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import jobs
import pytest
import watching

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

from object_store import store

from mirrorkit.train.checkpoints.bucket import Bucket

TRAINING = Path(__file__).with_name("killed_training.py")
ADDRESS = "s3://bucket/run"
EPOCHS = 2


def newest() -> int:
    """The steps of the newest checkpoint; all that a reader finds are whole."""
    bucket = Bucket(ADDRESS)
    found = bucket.find()
    for name in found:
        bucket.read(name)
    return int(found[0].rpartition("step-")[2].removesuffix(".json")) if found else 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_within_uploads_change_no_bit_and_leave_nothing_that_cannot_be_read(tmp_path: Path) -> None:
    """Connections break, answers are 503, and uploads are slow."""
    log = tmp_path / "log"
    jobs.finished(tmp_path, TRAINING, "--out", tmp_path / "unbroken", "--epochs", EPOCHS)
    options = ("--folder", ADDRESS, "--log", log, "--out", tmp_path / "killed", "--epochs", EPOCHS)
    with store(tmp_path, broken=0.1, busy=0.1, delay=0.005) as network:

        def started() -> Any:
            log.write_text("")
            return jobs.launched(tmp_path, "--workers", 2, TRAINING, *options, **network.environment)

        def killed(job: jobs.Process, worker: int) -> None:
            os.kill(jobs.pid_of(tmp_path, f"worker {worker}"), signal.SIGKILL)
            job.process.wait(jobs.LIMIT)

        with started() as job:  # the chief uploads
            jobs.until(lambda: watching.progress_of(log)[0] is not None, "the first step", by=job.process)
            before = network.uploads
            jobs.until(lambda: network.uploads > before, "an upload", by=job.process, every=0.001)
            time.sleep(25 * network.delay)
            killed(job, 0)
        target = newest() + 10
        with started() as job:
            jobs.until(lambda: watching.progress_of(log)[1] >= target, "the step", by=job.process)
            jobs.until(lambda: newest() > 0, "a checkpoint", by=job.process)
            killed(job, 1)
        with started() as job:
            assert job.end() == 0, job.text[-4000:]
        assert network.faults
    for worker in (0, 1):
        assert not watching.differences(tmp_path / f"unbroken{worker}.npz", tmp_path / f"killed{worker}.npz")
