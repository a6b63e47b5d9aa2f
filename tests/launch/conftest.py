"""Scripts for the launcher, and the launcher in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mirrorkit as mk


@pytest.fixture
def script(tmp_path):
    def write(code: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(code)
        return path

    return write


@pytest.fixture
def started(tmp_path):
    """Start `python -m mirrorkit launch` in a process of its own; it is gone at the end of the test."""
    processes = []

    def start(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(Path(mk.__file__).parents[1])}
        environment.pop("PYTHONUNBUFFERED", None)  # it would hide what is left in a buffer
        process = subprocess.Popen(
            [sys.executable, "-m", "mirrorkit", "launch", *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()
