from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mirrorkit.errors import JobError
from mirrorkit.launch import slots


def ends(file: Path) -> None:
    """Wait until a process does not write to a file any more."""
    deadline = time.monotonic() + 20
    size = -1
    while size != (size := file.stat().st_size):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.3)


@pytest.mark.parametrize("rest", ["echo 2", "sleep 300", "exit 3", "exec yes"])
def test_a_command_leaves_nothing_that_it_started(rest: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(slots, "_LONGEST", 2.0)
    beats = tmp_path / "beats"
    beats.touch()
    source = f"(while true; do echo >> {beats}; sleep 0.02; done) & {rest}"
    if rest == "echo 2":
        assert slots.count(source) == 2, "though what it has started holds its output open"
    else:
        with pytest.raises(JobError, match=r"has not ended within 2 s|exit status 3"):
            slots.count(source)
    ends(beats)
