"""Fixtures for the tests of the data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrorkit._keras import keras


@pytest.fixture(scope="session")
def cifar_shards() -> Path:
    """The folder of CIFAR-10 (JPEG) as gzip TFRecord files: train-*, test-*."""
    folder = os.environ.get("MIRRORKIT_CIFAR_SHARDS")
    if not folder:
        pytest.skip("needs CIFAR-10 (JPEG) as TFRecord files: set MIRRORKIT_CIFAR_SHARDS to their folder")
    return Path(folder)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data anywhere, no network."""
    monkeypatch.delenv("MIRRORKIT_DATA", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))

    def offline() -> None:
        raise OSError("no network here")

    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
        monkeypatch.setattr(getattr(keras.datasets, name), "load_data", offline)
