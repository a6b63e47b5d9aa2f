"""When a job goes on: tasks end and room goes in any order, on a placement that does what the test says."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mirrorkit import journal
from mirrorkit.launch import job
from mirrorkit.launch.job import Job

_ORDERS = list(itertools.permutations(("room", "lost", "survivor")))


class _Task:
    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        self._tell, self.has_ended = tell, False

    def ends(self, code: int, *, is_lost: bool = False) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._tell("lost" if is_lost else "exit", code)

    def send(self, number: int) -> None:
        self.ends(1)  # an error: the others are gone

    def end(self) -> None:
        self.ends(1)


class _Placement:
    """Two slots. In each attempt but the last a worker is lost with its slot, which Ray replaces."""

    problem = ""

    def __init__(self, events: queue.SimpleQueue, attempts: int, order: tuple[str, ...], saves: bool):
        self._events, self._attempts, self._order, self._saves = events, attempts, order, saves
        self.room, self.attempt = 2, 0

    def refresh(self) -> bool:
        before, self.room = self.room, 2
        return before != 2

    def look(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("not the job's to close")

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        self.attempt, self._tasks = self.attempt + 1, []
        return {f"worker {index}": {} for index in range(width)}

    def start(self, name: str, environment: Mapping[str, str], tell: Callable[[str, Any], None]) -> _Task:
        self._tasks.append(_Task(tell))
        if len(self._tasks) == 2:
            if self._saves and "MIRRORKIT_JOURNAL" in environment:
                tell("note", f"1700000000.000 {journal.SAVED} {10 * self.attempt}")
            self._happens()
        return self._tasks[-1]

    def _happens(self) -> None:
        one, other = self._tasks
        if self.attempt == self._attempts:
            one.ends(0)
            other.ends(0)
            return
        self.room = 1
        deeds = {"room": lambda: self._events.put(job.ROOM), "lost": lambda: other.ends(137, is_lost=True)}
        deeds["survivor"] = lambda: one.ends(1)
        for what in self._order:
            deeds[what]()


def _run(workers: tuple[int, int], attempts: int, order: tuple[str, ...], *, saves: bool) -> int:
    its_job = Job(workers, max_restarts=0, grace=1, wait=1)
    placement = _Placement(its_job.events, attempts, order, saves)
    code = its_job.run(placement)
    return placement.attempt if code == 0 else -code


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.5)


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_lost_room_is_no_failure_in_whatever_order_it_is_seen(order: tuple[str, ...]) -> None:
    assert _run((2, 3), 3, order, saves=True) == 3


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_without_a_save_in_between_it_is_one(order: tuple[str, ...]) -> None:
    """Otherwise a script that takes its node's memory each time would be started for ever."""
    assert _run((2, 3), 2, order, saves=False) == 2
    assert _run((2, 3), 3, order, saves=False) in (-1, -137)


def test_of_a_fixed_number_it_is_a_failure() -> None:
    assert _run((2, 2), 2, ("lost", "survivor"), saves=True) == -137
