"""Workers whose callbacks differ, or whose chief may not write, all say so; none waits for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import launched

pytestmark = pytest.mark.slow

SAYS = {
    "on the chief alone": "worker 0: Checkpoints; worker 1: none",
    "on the other alone": "worker 0: none; worker 1: Checkpoints",
    "another period": "worker 0: Checkpoints every 2 steps; worker 1: Checkpoints every 3 steps",
    "another check": "worker 0: NanWatch; worker 1: InSync every 500 steps",
    "another order": "worker 0: InSync every 500 steps, NanWatch; worker 1: NanWatch, InSync every 500 steps",
    "a living owner": "checkpoints to",
    "a dead owner": "trained",
    "the chief's own": "trained",
    "one of Keras": "trained",
}


def test_all_workers_say_what_differs(tmp_path: Path) -> None:
    launched(Path(__file__).with_name("differing_callbacks.py"), tmp_path, folder=tmp_path)
    for worker in (0, 1):
        found = json.loads((tmp_path / f"found{worker}.json").read_text())
        assert found.keys() == SAYS.keys()
        assert all(SAYS[name] in text for name, text in found.items()), found
        said = "Another run writes checkpoints" if worker == 0 else "The chief could not write checkpoints"
        assert said in found["a living owner"]
    assert not list(tmp_path.glob("*/.owner-*"))
