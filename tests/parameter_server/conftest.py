"""Runs under parameter servers: each is a script in a fresh process that prints what it saw, once per session.

TensorFlow connects a process to one cluster, so no test of another strategy could follow in the same process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def two_workers(run_python) -> dict[str, Any]:
    """What `two_workers.py` saw."""
    return run_python(HERE / "two_workers.py", timeout=280).json()


@pytest.fixture(scope="session")
def one_worker(run_python) -> dict[str, Any]:
    """What `one_worker.py` saw."""
    return run_python(HERE / "one_worker.py", timeout=280).json()
