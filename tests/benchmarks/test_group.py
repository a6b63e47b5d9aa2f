"""The processes of a benchmark: their environments and cores, one that fails, and calls at the same time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from harness.processes import Group, Member

from mirrorkit.errors import MirrorkitError


@pytest.fixture(autouse=True)
def _subjects(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_members_have_environments_and_cores_of_their_own_and_work_together(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    members = [Member({"number": i}, {"WHO": f"number {i}"}, core=i + 1) for i in range(2)]
    with Group("group_subjects:Number", *members, timeout=60) as group:
        assert group.call("who") == "number 0"
        assert group.call("number_and_cores") == (0, [own[1 % len(own)]])
        assert group.call("meet", folder=str(tmp_path)) == 0
    assert sorted(os.sched_getaffinity(0)) == own


def test_one_that_only_serves_is_not_called():
    members = [Member({"number": 0}), Member({"number": 1}, answers=False)]
    with Group("group_subjects:Number", *members, timeout=60) as group:
        assert group.call("who") is None


def test_one_that_fails_ends_the_wait_for_the_others():
    members = [Member({"number": 0}), Member({"number": 1})]
    with Group("group_subjects:Number", *members, timeout=120) as group:
        start = time.monotonic()
        with pytest.raises(MirrorkitError, match="number 1 fails"):
            group.call("fail_if_one_else_wait")
        assert time.monotonic() - start < 60
