"""The slot of a node, without Ray: what a task tells reaches the launcher once, and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
