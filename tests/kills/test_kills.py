"""A few kills of a real training, saving included; `kill_series.py` and `kill_workers.py` do as many as one likes."""

from __future__ import annotations

from pathlib import Path

import kill_series
import kill_workers
import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.alone  # a save takes milliseconds, within which the kill has to come
@pytest.mark.timeout(1200)
def test_three_kills_change_no_bit_and_tear_no_checkpoint(tmp_path: Path) -> None:
    lives, problems = kill_series.run_series(3, 6, tmp_path, seed=0)
    assert not problems
    assert [kill.kind for kill in lives] == list(kill_series.KINDS)
    assert not [problem for kill in lives for problem in kill.problems]
    assert lives[1].unfinished  # it was killed within a save


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["layout", "shard_optimizer"])
def test_so_it_is_with_a_model_on_several_devices(how: str, tmp_path: Path) -> None:
    """Two replicas of two devices; and four replicas of which each has a quarter of the slots."""
    lives, problems = kill_series.run_series(1, 3, tmp_path, seed=1, training=["--with", how])
    assert not problems
    assert lives[0].reached > 0
    assert not lives[0].problems


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_of_one_of_two_workers_change_no_bit(tmp_path: Path) -> None:
    lives, problems = kill_workers.run_series(2, 4, tmp_path, seed=0)
    assert not problems
    assert len(lives) == 2
    assert not [problem for kill in lives for problem in kill.problems]
    assert "launch | restart 2 of 2" in (tmp_path / "lives.txt").read_text()


def test_a_bit_that_differs_and_a_torn_checkpoint_are_seen(tmp_path: Path) -> None:
    """The judge itself: what it must not let pass."""
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    np.savez(one, **{"0": np.array([0.0]), "1": np.ones(3)})
    np.savez(other, **{"0": np.array([-0.0]), "1": np.ones(3)})
    assert kill_series.differences(one, one) == []
    assert kill_series.differences(one, other) == ["bits differ in: 0"]
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    folder.mkdir()
    (folder / "step-0000000005.npz").write_bytes(one.read_bytes())
    log.write_text("begin 5\nstep 7\n")
    assert kill_series.inspected("a step", 5, set(), folder, log) == kill_series.Kill("a step", 5, 7, 5, False, [])
    (folder / "step-0000000010.npz").write_bytes(one.read_bytes()[:-30])
    log.write_text("begin 0\nstep 7\n")
    assert len(kill_series.inspected("a step", 5, set(), folder, log).problems) == 2
