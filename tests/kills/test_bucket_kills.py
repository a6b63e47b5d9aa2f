"""A few kills of workers whose checkpoints are in a bucket; `bucket_kills.py` does as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

import bucket_kills
from object_store import store


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_within_uploads_change_no_bit_and_leave_nothing_that_cannot_be_read(tmp_path: Path) -> None:
    with store(tmp_path, broken=0.1, busy=0.1, delay=0.005) as network:
        lives, problems = bucket_kills.series(2, 2, tmp_path, network)
        assert network.faults
    assert not problems
    assert not [problem for life in lives for problem in life.problems]
    assert [life.within_upload for life in lives] == [True, False]
    assert lives[-1].newest
