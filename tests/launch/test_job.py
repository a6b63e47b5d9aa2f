"""When a job goes on: tasks end and room goes in any order, on an engine that does what the test says."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mirrorkit import journal
from mirrorkit.launch import job
from mirrorkit.launch.job import Job
from mirrorkit.launch.progress import Progress
from mirrorkit.launch.widths import Widths

_ORDERS = list(itertools.permutations(("room", "lost", "survivor")))


class _Task:
    def __init__(self, name: str, events: queue.SimpleQueue) -> None:
        self.name, self.is_lost, self._events = name, False, events
        self.has_ended = False

    def ends(self, code: int, *, is_lost: bool = False) -> None:
        if not self.has_ended:
            self.has_ended, self.is_lost = True, is_lost
            self._events.put((self, code))

    def send(self, number: int) -> None:
        self.ends(1)  # an error: the others are gone

    def end(self) -> None:
        self.ends(1)


class _Engine:
    """Two slots. In each attempt but the last a worker is lost with its slot, which Ray replaces."""

    problem = ""

    def __init__(self, events: queue.SimpleQueue, attempts: int, order: tuple[str, ...], saves: bool, folder: Path):
        self._events, self._attempts, self._order, self._saves, self._folder = events, attempts, order, saves, folder
        self.count, self.attempt = 2, 0

    def refresh(self) -> bool:
        before, self.count = self.count, 2
        return before != 2

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        self.attempt, self._tasks = self.attempt + 1, []
        return {f"worker {index}": {} for index in range(width)}

    def start(self, name: str, environment: Mapping[str, str]) -> _Task:
        self._tasks.append(_Task(name, self._events))
        if len(self._tasks) == 2:
            if self._saves and "MIRRORKIT_JOURNAL" in environment:
                journal.write(environment["MIRRORKIT_JOURNAL"], journal.SAVED, 10 * self.attempt)
            self._happens()
        return self._tasks[-1]

    def _happens(self) -> None:
        one, other = self._tasks
        if self.attempt == self._attempts:
            one.ends(0)
            other.ends(0)
            return
        self.count = 1
        deeds = {"room": lambda: self._events.put(self), "lost": lambda: other.ends(137, is_lost=True)}
        deeds["survivor"] = lambda: one.ends(1)
        for what in self._order:
            deeds[what]()


def _run(tmp_path: Path, workers: tuple[int, int], attempts: int, order: tuple[str, ...], *, saves: bool) -> int:
    events: queue.SimpleQueue = queue.SimpleQueue()
    engine = _Engine(events, attempts, order, saves, tmp_path)
    progress = Progress(tmp_path) if workers[0] < workers[1] else None
    widths: Any = Widths(*workers, engine, wait=1)
    code = Job(engine, events, widths, progress, 0, has_servers=False, grace=1).run()
    return engine.attempt if code == 0 else -code


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.5)


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_lost_room_is_no_failure_in_whatever_order_it_is_seen(order: tuple[str, ...], tmp_path: Path) -> None:
    assert _run(tmp_path, (2, 3), 3, order, saves=True) == 3


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_without_a_save_in_between_it_is_one(order: tuple[str, ...], tmp_path: Path) -> None:
    """Otherwise a script that takes its node's memory each time would be started for ever."""
    assert _run(tmp_path, (2, 3), 2, order, saves=False) == 2
    assert _run(tmp_path, (2, 3), 3, order, saves=False) in (-1, -137)


def test_of_a_fixed_number_it_is_a_failure(tmp_path: Path) -> None:
    assert _run(tmp_path, (2, 2), 2, ("lost", "survivor"), saves=True) == -137
