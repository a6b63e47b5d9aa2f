"""Items that processes fetch: the same ones, their errors, and what cannot be copied into a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import processes, until
from own_items import Ending, Faulty, Items, Stuck

from mirrorkit.data.item_reader import ItemReader
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.fetching.served import Processes

X = np.arange(40)[:, None]
Y = np.arange(40) % 7
TEXT = np.array([b"a\0", b"bc"] * 20, object)


def batches_of(items, number=2):
    with Processes(items, number).started(number) as fetch:
        return [fetch(numbers) for numbers in np.arange(40).reshape(4, 10)]


def test_each_item_is_fetched_once_by_one_of_the_processes(tmp_path):
    (tmp_path / "log").touch()
    items = Items(X, TEXT, tmp_path / "log")
    got = batches_of(items)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in got]), X)
    assert np.concatenate([text for _, text in got]).tolist() == TEXT.tolist()
    lines = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    others = [line for line in lines if line[1] != os.getpid()]
    assert sorted(number for number, _ in others) == list(range(40))
    assert len({pid for _, pid in others}) == 2


def test_what_is_being_fetched_is_not_waited_for():
    reader = ItemReader(Stuck(X, Y), None, threads=2, processes=2)
    batches = reader.batches(iter(np.arange(40).reshape(4, 1, 10)))
    next(batches)
    batches.close()  # or this test ends by its timeout
    assert not children()


def test_a_faulty_item_is_named():
    with pytest.raises(DataError, match=r"item 17 of Faulty failed: ValueError: bad \(.*own_items.py"):
        batches_of(Faulty(17, ValueError("bad")))


def test_a_process_that_ends_is_an_error():
    with pytest.raises(DataError, match=r"items 0, 1, 2, ... \(10\) ended with 3"):
        batches_of(Ending(X, Y), 1)


def test_what_cannot_be_copied_is_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = X
        with pytest.raises(RecipeError, match=r"processes=2 .* Dataset .*h5py"):
            Processes(file["x"], 2)

    class Inside(Items):
        pass

    with pytest.raises(RecipeError, match="Inside cannot be copied"):
        Processes(Inside(X, Y), 2)


def test_a_class_of_the_script_is_refused(monkeypatch):
    monkeypatch.setattr(Items, "__module__", "__main__")
    with pytest.raises(RecipeError, match="Items is defined in the script"):
        Processes(Items(X, Y), 2)


def test_a_class_that_a_process_cannot_import(monkeypatch, tmp_path):
    (tmp_path / "passing.py").write_text("class Passing(list): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from passing import Passing

    items = Passing(zip(X, Y, strict=True))
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"ModuleNotFoundError: .*'pass"):
        batches_of(items)


SCRIPT = """
import sys, time
import numpy as np
from own_items import NAME
from mirrorkit.fetching import Processes
with Processes(NAME(np.arange(40)[:, None], np.arange(40)), 2).started(2) as fetch:
    fetch(np.arange(10))
    assert "tensorflow" not in sys.modules
    print("fetches", flush=True)
    fetch(np.arange(10, 20))
    time.sleep(600)
"""


@pytest.mark.parametrize("items", ["Stuck", "Items"], ids=["processes work", "they wait"])
def test_nothing_is_left_of_a_script_that_is_killed(tmp_path, items):
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT.replace("NAME", items)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path, text=True) as script:
        assert script.stdout.readline() == "fetches\n"
        assert len(processes(tmp_path)) == 3
        os.kill(script.pid, signal.SIGKILL)
    until(lambda: not processes(tmp_path), "the end of the processes", limit=20)


def children() -> list[str]:
    """The command of each child that runs `mirrorkit.fetching.serve`."""
    pids = [pid for thread in Path("/proc/self/task").glob("*/children") for pid in thread.read_text().split()]
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
    return [command for command in commands if "mirrorkit.fetching.serve" in command]
