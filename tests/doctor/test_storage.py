"""A disk that is really full; the other cases are in test_broken_setups.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorkit.doctor import storage


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_left_as_it_was(small_disk):
    (found,) = storage.checkpoints(str(small_disk / "runs"))
    assert (found.name, found.status) == ("checkpoints", "failure")
    assert f"{small_disk} cannot be written to" in found.found
    assert "No space left" in found.found
    assert found.cure.startswith("Make room")
    assert list(small_disk.iterdir()) == []
