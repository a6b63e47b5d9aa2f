"""When a job goes on: tasks end and room changes in any order, on a placement that does what the test says."""

from __future__ import annotations

import itertools
import queue
import re
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mirrorkit import journal
from mirrorkit.errors import JobError
from mirrorkit.launch import job
from mirrorkit.launch.job import Job
from mirrorkit.launch.process import ROOM

_ORDERS = list(itertools.permutations(("room", "lost", "survivor")))


class _Task:
    def __init__(self, tell: Callable[[str, Any], None], code: int) -> None:
        self._tell, self._code, self._has_ended = tell, code, False

    def ends(self, code: int, *, is_lost: bool = False) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._tell("lost" if is_lost else "exit", code)

    def notes(self, what: str, number: int) -> None:
        self._tell("note", f"1700000000.000 {what} {number}")

    def send(self, number: int) -> None:
        self.ends(self._code)

    def end(self) -> None:
        self.ends(137)


class _Placement:
    """Calls a deed in each attempt when its tasks have started, and `again` with each that starts after that.

    Attributes:
        later: the room after the attempt.
        servers: whether there are a chief, before the workers, and a parameter server after them.
        widths: the number of workers in each attempt.
        started: name and environment of each task.
    """

    problem, servers = "", False

    def __init__(self, events: queue.SimpleQueue, deeds: tuple[_Deed, ...], room: int, code: int) -> None:
        self._events, self._deeds, self._code = events, deeds, code
        self.room, self.later = room, None
        self.widths: list[int] = []
        self.started: list[tuple[str, Mapping[str, str]]] = []
        self.again: Callable[[_Task], None] = lambda task: None

    def has_room(self, number: int) -> None:
        self.room = number
        self._events.put(ROOM)

    def refresh(self) -> bool:
        before, self.room = self.room, self.later or self.room
        self.later = None
        return before != self.room

    def look(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("not the job's to close")

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        self.widths.append(width)
        self._tasks: list[_Task] = []
        workers = [f"worker {index}" for index in range(width)]
        self._names = ["chief", *workers, "ps 0"] if self.servers else workers
        return {name: {"attempt": str(len(self.widths))} for name in self._names}

    def start(self, name: str, environment: Mapping[str, str], tell: Callable[[str, Any], None]) -> _Task:
        self.started.append((name, environment))
        self._tasks.append(_Task(tell, self._code))
        if len(self._tasks) == len(self._names):
            self._deeds[len(self.widths) - 1](self, self._tasks)
        elif len(self._tasks) > len(self._names):
            self.again(self._tasks[-1])
        return self._tasks[-1]


_Deed = Callable[[_Placement, list[_Task]], None]


def _run(
    workers: tuple[int, int], *deeds: _Deed, room: int = 99, code: int = 143, before: Any = None, **options: Any
) -> tuple[int, list[int]]:
    """Return the exit code, and the number of workers in each attempt; tasks end with `code` when they have to."""
    its_job = Job(workers, **{"max_restarts": 0, "grace": 1, "wait": 0.1, **options})
    placement = _Placement(its_job.events, deeds, room, code)
    if before:
        before(its_job, placement)
    return its_job.run(placement), placement.widths


def _well(place: _Placement, tasks: list[_Task]) -> None:
    for task in tasks:
        task.ends(0)


def _fails(place: _Placement, tasks: list[_Task]) -> None:
    tasks[0].ends(9)


def _fails_after_steps(place: _Placement, tasks: list[_Task]) -> None:
    tasks[0].notes(journal.STEPS, 8)
    tasks[0].ends(9)


def _begins(step: int, *, saves: bool) -> _Deed:
    def deed(place: _Placement, tasks: list[_Task]) -> None:
        for what, number in ((journal.BEGAN, 0), (journal.RESTORED, step), (journal.STEPS, step + 8)):
            tasks[0].notes(what, number)
        if saves:
            tasks[0].notes(journal.SAVED, step + 8)
        tasks[0].ends(7 if len(place.widths) == 1 else 0)
        _well(place, tasks)

    return deed


def _gets_room(number: int) -> _Deed:
    return lambda place, tasks: place.has_room(number)


def _loses(order: tuple[str, ...], *, saves: bool) -> _Deed:
    """Of two workers one is lost with its slot, which Ray replaces."""

    def deed(place: _Placement, tasks: list[_Task]) -> None:
        one, other = tasks
        if saves:
            one.notes(journal.SAVED, 10 * len(place.widths))
        place.room, place.later = 1, 2
        deeds = {"room": lambda: place.has_room(1), "lost": lambda: other.ends(137, is_lost=True)}
        deeds["survivor"] = lambda: one.ends(1)
        for what in order:
            deeds[what]()

    return deed


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.5)


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_lost_room_is_no_failure_in_whatever_order_it_is_seen(order: tuple[str, ...]) -> None:
    loses = _loses(order, saves=True)
    assert _run((2, 3), loses, loses, _well, room=2, code=1) == (0, [2, 2, 2])


@pytest.mark.parametrize("order", _ORDERS, ids=" ".join)
def test_without_a_save_in_between_it_is_one(order: tuple[str, ...]) -> None:
    """Otherwise a script that takes its node's memory each time would be started for ever."""
    loses = _loses(order, saves=False)
    assert _run((2, 3), loses, _well, room=2, code=1) == (0, [2, 2])
    assert _run((2, 3), loses, loses, room=2, code=1)[0] in (1, 137)


def test_of_a_fixed_number_it_is_a_failure() -> None:
    assert _run((2, 2), _loses(("lost", "survivor"), saves=False), room=2, code=1)[0] == 137


def test_a_lost_worker_is_replaced_and_where_no_restart_is_left_the_others_go_on(capsys: Any) -> None:
    assert _run((2, 4), *[_fails_after_steps] * 4, max_restarts=1) == (9, [4, 4, 3, 2])
    said = [line for line in capsys.readouterr().err.splitlines() if "on with" in line or "restart 1" in line]
    assert said == [
        "launch | restart 1 of 1",
        "launch | no restart is left: on with 3 of 4 workers",
        "launch | no restart is left: on with 2 of 3 workers",
    ]


def test_a_script_that_fails_before_its_first_step_is_tried_once_with_fewer_workers(capsys: Any) -> None:
    assert _run((1, 16), _fails, _fails) == (9, [16, 15])
    assert "launch | no step was made with 15 workers either: the job ends" in capsys.readouterr().err
    assert _run((1, 16), _fails, _fails_after_steps, _fails, _fails) == (9, [16, 15, 14, 13])


def test_a_worker_fails_and_its_slot_is_gone() -> None:
    def fails(place: _Placement, tasks: list[_Task]) -> None:
        place.later = 3
        tasks[3].ends(137)

    assert _run((2, 4), fails, _well, room=4, max_restarts=1) == (0, [4, 3])
    with pytest.raises(JobError, match=r"room for 3 workers, .* needs 4: it has waited for 0\.1 s"):
        _run((4, 5), fails, room=4, max_restarts=5)


def test_the_job_follows_the_number_of_slots(capsys: Any) -> None:
    assert _run((1, 4), *map(_gets_room, (3, 1, 9)), _well, room=2) == (0, [2, 3, 1, 4])
    changes = [("3 workers", 2), ("1 worker", 3), ("4 workers", 1)]
    now = [f"there is now room for {a}: ending the {b} that run, after they have saved" for a, b in changes]
    assert capsys.readouterr().err.splitlines() == [f"launch | {text}" for text in now]


def test_another_number_of_slots_that_changes_nothing() -> None:
    def gets_room(place: _Placement, tasks: list[_Task]) -> None:
        place.has_room(7)
        threading.Timer(0.1, _well, (place, tasks)).start()

    assert _run((1, 3), gets_room, room=3, code=5) == (0, [3])


def test_what_was_lost_comes_back_with_another_number_of_slots() -> None:
    assert _run((1, 3), _fails, _gets_room(3), _well, room=2) == (0, [2, 1, 3])


def test_room_or_a_signal_that_comes_while_the_job_waits(capsys: Any) -> None:
    def later(its_job: Job, placement: _Placement) -> None:
        threading.Timer(0.1, placement.has_room, (2,)).start()

    assert _run((1, 3), _well, room=0, wait=60, before=later) == (0, [2])
    assert "room for 0 workers, and the job needs 1: waiting up to 60 s" in capsys.readouterr().err
    assert _run((1, 3), room=0, wait=60, before=lambda its_job, _: its_job.events.put(signal.SIGTERM)) == (143, [])


def _serves(its_job: Job, placement: _Placement) -> None:
    placement.servers = True


def _said(capsys: Any) -> list[str]:
    return [line.removeprefix("launch | ") for line in capsys.readouterr().err.splitlines()]


def test_with_ps_a_worker_that_fails_starts_again_alone_at_its_address(capsys: Any) -> None:
    seen: list[_Placement] = []

    def fails(place: _Placement, tasks: list[_Task]) -> None:
        seen.append(place)
        chief, _, other, _ = tasks

        def again(task: _Task) -> None:
            task.ends(7)
            if len(place.started) == 6:  # no restart is left
                chief.ends(0)

        place.again = again
        other.ends(7)

    assert _run((2, 2), fails, max_restarts=2, before=_serves) == (0, [2])
    ended = "worker 1 ended with exit code 7; the others go on"
    assert _said(capsys) == [ended, "restart 1 of 2: worker 1", ended, "restart 2 of 2: worker 1", ended]
    names = [name for name, _ in seen[0].started]
    assert names == ["chief", "worker 0", "worker 1", "ps 0", "worker 1", "worker 1"]
    assert seen[0].started[2] == seen[0].started[4] == seen[0].started[5]


def test_with_ps_the_last_worker_that_fails_ends_the_job(capsys: Any) -> None:
    def fails(place: _Placement, tasks: list[_Task]) -> None:
        tasks[1].ends(8)
        tasks[2].ends(9)

    assert _run((2, 2), fails, before=_serves) == (9, [2])
    said = ["worker 0 ended with exit code 8; the others go on", "worker 1 ended with exit code 9; ending the others"]
    assert _said(capsys) == said


@pytest.mark.parametrize(("place_of", "name"), [(0, "chief"), (2, "ps 0")])
def test_a_ps_or_a_chief_that_fails_ends_the_job_which_starts_again_as_a_whole(
    place_of: int, name: str, capsys: Any
) -> None:
    def fails(place: _Placement, tasks: list[_Task]) -> None:
        tasks[place_of].ends(7)

    def is_through(place: _Placement, tasks: list[_Task]) -> None:
        tasks[0].ends(0)

    assert _run((1, 1), fails, is_through, max_restarts=1, before=_serves) == (0, [1, 1])
    assert _said(capsys) == [f"{name} ended with exit code 7; ending the others", "restart 1 of 1"]


def test_a_training_that_has_saved_and_begins_anew_is_refused() -> None:
    assert _run((1, 2), _begins(0, saves=False), _begins(0, saves=False)) == (0, [2, 1])
    assert _run((1, 2), _begins(0, saves=True), _begins(8, saves=True)) == (0, [2, 1])
    with pytest.raises(JobError, match="Step 8 was saved"):
        _run((1, 2), _begins(0, saves=True), _begins(0, saves=True))


def test_times_are_those_of_the_launchers_clock(capsys: Any) -> None:
    """Those in the notes of tasks are of another machine, or of before a clock was set."""
    assert _run((1, 2), _begins(0, saves=False), _begins(8, saves=False)) == (0, [2, 1])
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "from step" in line]
    assert re.search(r"on, 0\.\d s after the last step \((\w[a-z ]+ 0\.\d(, |\))){5}", said), said
