"""The slot of a node, without Ray: what a task tells reaches the launcher once, and in order."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorkit.launch import ray_nodes
from mirrorkit.launch.ray_slot import Slot


def test_an_answer_that_got_lost_is_given_again_and_a_late_question_takes_nothing(tmp_path: Path) -> None:
    code = (
        "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    )
    slot = Slot()
    slot.start(["-c", code], {}, str(tmp_path), None)
    first = slot.read(5)
    assert first == [("out", "first")]
    assert slot.read(5) == first
    (tmp_path / "go").touch()
    found: list[Any] = []
    for number in range(6, 10):
        found += slot.read(number)
        assert slot.read(5) == slot.read(number)  # the first is of an earlier attempt, say
        if found[-1][0] == "exit":
            break
    assert found == [("out", "second"), ("exit", 0)]


def test_one_task_after_the_other(tmp_path: Path) -> None:
    slot, numbers = Slot(), iter(range(1, 20))
    for code in (3, 0):
        slot.start(["-c", f"raise SystemExit({code})"], {}, str(tmp_path / "nowhere"), None)
        assert slot.read(next(numbers)) == [("exit", code)]


@pytest.mark.parametrize(("is_actor_there", "what"), [(True, "exit"), (False, "lost")])
def test_a_script_that_is_killed_as_its_actor_exits_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, is_actor_there: bool, what: str
) -> None:
    """When a node is lost, Ray kills what an actor has started before the actor exits."""

    class LostError(Exception):
        pass

    def address() -> str:
        if not is_actor_there:
            raise LostError
        return "host:1"

    def method(answer: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *_: answer)

    actor = SimpleNamespace(start=method(lambda: None), read=method(lambda: [("exit", 137)]), address=method(address))
    errors = SimpleNamespace(RayActorError=LostError, ActorUnavailableError=ConnectionError)
    ray = SimpleNamespace(get=lambda answer: answer(), kill=lambda actor: None, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_nodes, "_LOOK", 0.0)
    told: list[tuple[str, Any]] = []
    process = ray_nodes.RayProcess(actor, lambda *event: told.append(event))
    process._following.result(30)
    assert told[-1] == (what, 137)
    assert [event for event in told if event[0] in ("exit", "lost")] == [(what, 137)]


def test_actors_that_do_not_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    called = SimpleNamespace(remote=lambda: None)
    kind = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: SimpleNamespace(address=called)))
    errors = SimpleNamespace(ActorUnavailableError=ConnectionError)
    ray = SimpleNamespace(
        remote=lambda slot: kind, get=lambda answer: end.wait(30), kill=lambda actor: None, exceptions=errors
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_nodes, "_SECONDS_TO_DIE", 0.5)
    nodes = ray_nodes.RayNodes([], queue.SimpleQueue(), 6, ray_nodes.WorkerResources())
    start = time.monotonic()
    nodes.close()
    assert 0.4 < time.monotonic() - start < 2
    end.set()
