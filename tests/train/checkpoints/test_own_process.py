"""What `own_process.py` shows: one process for all that cannot be seen from within pytest."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from checkpoint_helpers import saved_at


@pytest.mark.slow  # fast: failing writes and signals, each in its module
def test_a_full_disk_and_exit_codes(run_python: Any) -> None:
    result = run_python(Path(__file__).with_name("own_process.py"), check=False)
    full, left = map(json.loads, result.stdout.splitlines())
    assert full[0] == saved_at(2, 4)
    assert "step-0000000006.npz could not be written: OSError: [Errno 27] File too large" in full[1]
    assert "Exception ignored" not in result.stderr
    assert left == [saved_at(3), 143]
    assert result.stderr.count("start again to go on") == 2
    assert result.returncode == -signal.SIGINT
