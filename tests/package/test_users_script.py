"""A user's script passes `mypy --strict` against the public interface, and its wrong lines do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What a user has to say: TensorFlow and Keras bring no types. `silent` checks the script, not mirrorkit's own files.
SETTINGS = """
[mypy]
strict = True
follow_imports = silent
[mypy-tensorflow.*,keras.*]
ignore_missing_imports = True
follow_imports = skip
"""


@pytest.mark.slow
def test_mypy_accepts_the_script(tmp_path):
    """Its ignored errors too: an ignore that nothing needs is an error."""
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [*command, Path(__file__).with_name("users_script.py")],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
