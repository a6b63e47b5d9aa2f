"""Workers for the tests of this folder: processes that call the tests' functions, started once for all of them.

Most modules have a function `asked`, which is called on two workers; `found` is what each of them returned.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.processes import Group, Member
from jobs import environment

from mirrorkit.errors import MirrorkitError
from mirrorkit.launch import layout


@pytest.fixture(scope="session")
def on_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Any]]]:
    """`on_workers(function, ...)`: what `function(strategy, ...)` returns on each of several workers.

    All call it at the same time. The function is one of a module, and what it returns can be pickled. The workers stay
    until the end of the session, so ask them in a fixture of the module, not in a test; after an error new ones start.
    """
    started: dict[tuple[int, str], Group] = {}

    def on_workers(function: Any, *arguments: Any, workers: int = 2, communication: str = "auto") -> list[Any]:
        kind = workers, communication
        if kind not in started:
            tasks = layout.environments(layout.clusters(workers), environ=environment())
            members = [Member({"communication": communication}, own) for own in tasks.values()]
            started[kind] = Group("scenarios:Worker", *members, timeout=280)
        folder = tmp_path_factory.mktemp(function.__name__)
        call = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
        try:
            started[kind].call("call", folder=folder, **call)
        except MirrorkitError:
            started.pop(kind).__exit__()
            raise
        return [pickle.loads((folder / f"found{i}").read_bytes()) for i in range(workers)]

    yield on_workers
    for remote in started.values():
        remote.__exit__()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all workers."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, on_workers: Callable[..., list[Any]], folder: Path) -> list[Any]:
    """What the module's function `asked` returns on each of two workers; it gets the folder where it takes one."""
    asked = request.module.asked
    return on_workers(asked, *[folder] * (len(inspect.signature(asked).parameters) - 1))
