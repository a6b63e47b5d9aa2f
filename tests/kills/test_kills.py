"""Whatever happens to one of two workers, or to a run whose checkpoints are in a bucket, changes no bit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
import soak
import watching
from object_store import store
from soak_table import Struck
from strikes import KILL, SAVE, START, STEP, TERM, Strike, in_turn
from watching import STEPS_PER_EPOCH

from mirrorkit.train.checkpoints.bucket import Bucket

# --- A few kills of a real training, saving included; `soak.py` does a hundred


def struck(part: str, plan: Sequence[Strike], epochs: int, folder: Path, *options: str) -> list[Struck]:
    """Strike a training as a part of the soak does; return what happened, of which nothing may be wrong."""
    one = soak.Soak(part, plan, epochs, folder, 0, options=options)
    wrong = one.run()
    assert not [problem for life in one.done for problem in (*life.left, *life.problems)] + wrong
    return one.done


@pytest.mark.slow
@pytest.mark.alone  # a save takes milliseconds, within which the kill has to come
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["shard_optimizer", "table"])
def test_three_kills_change_no_bit_and_tear_no_checkpoint(tmp_path: Path, how: str) -> None:
    """Of replicas that have a part of the optimizer's slots each, or a large table; the workers below have neither."""
    lives = struck("process", in_turn("the process", 3), 6, tmp_path, "--with", how)
    assert [life.moment for life in lives] == [STEP, SAVE, START]
    assert lives[1].unfinished  # it was killed within a save


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("data", ["resident", "records", "parquet", "image_folder", "source", "mix"])
def test_a_kill_within_an_epoch_changes_no_bit_wherever_the_examples_are(tmp_path: Path, data: str) -> None:
    """The workers below, and the process above, have theirs in memory."""
    (life,) = struck(
        "process", [Strike("the process", KILL, STEP)], 2, tmp_path, "--data", data, "--set", f"{tmp_path}/set"
    )
    assert life.reached % STEPS_PER_EPOCH  # within an epoch


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_whatever_happens_to_one_of_two_workers_changes_no_bit(tmp_path: Path) -> None:
    """The launcher ends the other one and starts both again."""
    plan = [*in_turn("a worker", 1), Strike("a worker", TERM, STEP)]
    lives = struck("workers", plan, 4, tmp_path)
    assert [life.starts for life in lives] == [1] * len(plan)
    said = (tmp_path / "said").read_text()
    assert all(f"worker {worker} | SIGTERM: saved in" in said for worker in (0, 1))
    assert "ended with exit code 143 (SIGTERM)" in said


def test_a_bit_that_differs_and_a_torn_checkpoint_are_seen(tmp_path: Path) -> None:
    """The judge itself: what it must not let pass."""
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    np.savez(one, **{"0": np.array([0.0]), "1": np.ones(3)})
    np.savez(other, **{"0": np.array([-0.0]), "1": np.ones(3)})
    assert watching.differences(one, one) == []
    assert watching.differences(one, other) == ["bits differ in: 0"]
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    folder.mkdir()
    (folder / "step-0000000005.npz").write_bytes(one.read_bytes())
    log.write_text("begin 5\nstep 7\n")
    assert watching.inspected(5, set(), folder, log) == watching.Life(5, 7, 5, False, [])
    (folder / "step-0000000010.npz").write_bytes(one.read_bytes()[:-30])
    log.write_text("begin 0\nstep 7\n")
    assert len(watching.inspected(5, set(), folder, log).problems) == 2


# --- two workers whose checkpoints go to an S3 server behind a bad network: killed, they end as if nothing had been


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
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto is not installed")
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
