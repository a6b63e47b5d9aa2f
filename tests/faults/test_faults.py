"""The judge of runs that were disturbed (test_slurm.py); what disturbs them: tests/kills, tests/multiworker."""

from __future__ import annotations

import judged
import numpy as np


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
