"""Files that other processes may use too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mirrorkit import files

KILLED = """
import ctypes, os, shutil, signal, sys
from pathlib import Path
from mirrorkit import files

MODEL = ("saved_model.pb", "variables/variables.index")


def write(text):
    def into(folder):
        for name in MODEL:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return into


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def dies_at(number):
    "Let this process kill itself before its n-th call that changes names, or return after all of them."
    calls = [0]

    def deadly(owner, name):
        function = getattr(owner, name)

        def wrapped(*args, **options):
            calls[0] += 1
            if calls[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        setattr(owner, name, wrapped)

    for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "open"):
        deadly(os, name)
    deadly(shutil, "rmtree")
    if can_exchange:
        deadly(files, "_exchange")
    else:
        files._exchange = lambda one, other: False


can_exchange = sys.argv[1] == "exchange"
target = Path("runs", "model")
lost = 0
for number in range(1, 100):
    files.replace(target, write("old"), lambda: None)
    old = content(target)
    child = os.fork()
    if not child:
        dies_at(number)
        files.replace(target, write("new"), lambda: None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    there = content(target) if target.exists() else None
    if there is None:
        lost += 1
        try:
            files.replace(target, lambda path: 1 / 0, lambda: None)  # one that fails brings the old one back
        except ZeroDivisionError:
            assert content(target) == old
    else:
        assert set(there) == set(MODEL) and len(set(there.values())) == 1, there
    files.replace(target, write("newer"), lambda: None)
    assert os.listdir("runs") == ["model"], os.listdir("runs")
    assert set(content(target).values()) == {"newer"}
    if status == 0:
        break
print(number, lost)
"""


@pytest.mark.parametrize("how", ["exchange", "two renames"])
def test_a_kill_at_any_moment_leaves_the_old_one_or_the_new_one(how: str, run_python: object) -> None:
    code = KILLED.replace("sys.argv[1]", repr(how))
    number, lost = map(int, run_python(code).stdout.split())  # type: ignore[operator]
    assert number > 10
    # Without an exchange there is a moment between two renames; what was there is put back by the next call.
    assert lost == (0 if how == "exchange" else 1)


def test_what_another_living_process_writes_stays(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        left = tmp_path / ".model-abcd1234"
        left.mkdir()
        started = files._started(other.pid)
        (left / "process").write_bytes(files.this_process(pid=other.pid, started=started))
        (left / "new").write_text("half")
        files.replace(tmp_path / "model", lambda path: path.write_text("one") and None, lambda: None)
        assert (left / "new").read_text() == "half"
    finally:
        other.kill()
        other.wait()
    files.replace(tmp_path / "model", lambda path: path.write_text("two") and None, lambda: None)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_text() == "two"


def test_a_link_at_its_place_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    folder, link = tmp_path / "elsewhere", tmp_path / "model"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    link.symlink_to(folder)
    files.replace(link, lambda path: path.mkdir(), lambda: None)
    assert not link.is_symlink()
    assert (folder / "mine").read_text() == "mine"


def test_only_new_files_are_made_and_only_regular_ones_opened(tmp_path: Path) -> None:
    victim, link, pipe = (tmp_path / name for name in ("victim", "link", "pipe"))
    link.symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.create(link, b"new")
    assert not victim.exists()
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises((ValueError, IsADirectoryError), match=r"regular|directory"):
            files.open_regular(path)


def test_a_process_is_told_from_another_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "process").write_bytes(files.this_process(more=1))
    mine = files.read_process(tmp_path / "process")
    assert mine["more"] == 1
    assert files.is_running(mine)
    for changes in ({"pid": 2**22 + 1}, {"pid": "1"}, {"started": 1}, {"kernel": "another"}, {"kernel": None}):
        assert not files.is_running({**mine, **changes})
    assert not files.is_running({})
