"""A worker that is killed, or has to leave, where no launcher starts it again; and the judge itself.

tests/kills strikes workers that a launcher starts again, tests/multiworker has further workers that are lost, and
tests/train/parameter_server the faults of parameter servers.
"""

from __future__ import annotations

import jobs
import judged
import numpy as np
import pytest

GONE = r"ClusterError: worker 0 \(127\.0\.0\.1:\d+\) is gone, and the other workers cannot go on without it"
SECONDS = 90  # until the others have said so, on a machine that has other things to do


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "worker", "codes", "said"),
    [("kill", 0, [-9, 1], GONE), ("term", 1, [143, 143], "SIGTERM: saved in")],
    ids=["the chief is killed", "SIGTERM"],
)
def test_the_others_say_so_and_the_next_start_ends_with_the_same_bits(tmp_path, event, worker, codes, said):
    happens = ("--event", event, "--worker", worker, "--step", 36)
    with jobs.started(tmp_path, jobs.WORKERS, tmp_path, *happens) as tasks:
        assert [tasks[f"worker {i}"].end() for i in range(2)] == codes
    moment, _ = tasks[f"worker {1 - worker}"].line(said)
    assert moment - float((tmp_path / "happened").read_text()) < SECONDS
    if event == "term":  # all have saved, within the epoch in which the signal came
        assert all(task.says(said) for task in tasks.values())
        newest = max(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert "step-0000000036.npz" <= newest <= "step-0000000040.npz"
    jobs.finished(tmp_path, jobs.WORKERS, tmp_path)
    assert not judged.changed(tmp_path)


def test_other_bits_or_no_end_at_all_are_not_right(tmp_path, monkeypatch):
    for worker in range(2):
        np.savez(tmp_path / f"end{worker}.npz", np.array([0.0, 1.0]))
    expected = judged.end_of(tmp_path, 0)
    monkeypatch.setattr(judged, "undisturbed", lambda: expected)
    assert judged.changed(tmp_path) == []
    np.savez(tmp_path / "end1.npz", np.array([-0.0, 1.0]))
    assert judged.changed(tmp_path) == ["other bits in worker 1"]
    (tmp_path / "end0.npz").unlink()
    assert judged.changed(tmp_path) == ["other bits in worker 0", "other bits in worker 1"]
