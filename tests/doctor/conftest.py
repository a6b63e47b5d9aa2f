"""Fixtures for the doctor: an environment without a cluster, and stand-ins for TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# What a machine on which the tests run may have set, and what makes a finding.
CLUSTER = ("TF_CONFIG", "KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS", "MIRRORKIT_", "SLURM_", "JOB_COMPLETION_")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster, no choice about Keras, no data."""
    for name in [name for name in os.environ if name.startswith(CLUSTER)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "no-keras"))


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """`distribution("numpy", "1.20.0")` makes it look installed; `code` is what an import of it runs."""
    folder = tmp_path / "installed"
    folder.mkdir()

    def install(name: str, version: str, *, code: str | None = None, requires: tuple[str, ...] = ()) -> Path:
        about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (about / "METADATA").write_text("\n".join(lines) + "\n\n")
        if code is not None:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(code)
        return folder

    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)  # of a child process
    return install
