"""Runs under parameter servers: each is a script in a fresh process, once per session; a test takes a section of it.

TensorFlow connects a process to one cluster, so no test of another strategy could follow in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sections import result

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def two_workers(run_python) -> Callable[[str], Any]:
    """`two_workers("fit")`: what a section of `two_workers.py` returned."""
    return partial(result, run_python(HERE / "two_workers.py", timeout=280).json())


@pytest.fixture(scope="session")
def two_workers_more(run_python) -> Callable[[str], Any]:
    """The same of the sections of slow tests."""
    return partial(result, run_python(HERE / "two_workers.py", timeout=280, env={"SLOW_SECTIONS": "1"}).json())


@pytest.fixture(scope="session")
def one_worker(run_python) -> Callable[[str], Any]:
    """`one_worker("table")`: what a section of `one_worker.py` returned."""
    return partial(result, run_python(HERE / "one_worker.py", timeout=280).json())
