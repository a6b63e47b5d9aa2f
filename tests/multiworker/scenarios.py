"""One of several workers that call functions of the tests, one after the other; `conftest.py` starts them."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import keras

import mirrorkit as mk


class Worker:
    """What lives in each process: the strategy of all workers, made once."""

    def __init__(self, communication: str) -> None:
        self._strategy = mk.strategy.create(
            "multi_worker", devices="cpu", communication=communication, start_timeout=120
        )

    def call(self, module: str, function: str, arguments: tuple[Any, ...], folder: Path) -> None:
        """Call a function with the strategy and these arguments; what it returns goes into a file of this worker's."""
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        found = getattr(importlib.import_module(module), function)(self._strategy, *arguments)
        (folder / f"found{mk.strategy.worker_index(self._strategy)}").write_bytes(pickle.dumps(found))
