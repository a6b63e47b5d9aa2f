"""Files that other processes may use too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrorkit import files

KILLED = """
import os, shutil, signal
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


target = Path("runs", "model")
lost = 0
for number in range(1, 100):
    files.replace(target, write("old"), lambda: None)
    child = os.fork()
    if not child:
        dies_at(number)
        files.replace(target, write("new"), lambda: None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    left = [Path("runs", name) for name in os.listdir("runs") if name != "model"]
    if target.exists():
        there = content(target)
        assert set(there) == set(MODEL) and len(set(there.values())) == 1, there
    else:
        lost += 1
        (beside,) = left
        for name in ("old", "new"):
            assert content(beside / name) == dict.fromkeys(MODEL, name)
    files.replace(target, write("newer"), lambda: None)
    assert set(content(target).values()) == {"newer"}
    for folder in left:
        shutil.rmtree(folder)
    assert os.listdir("runs") == ["model"], os.listdir("runs")
    if status == 0:
        break
print(number, lost)
"""


def test_a_kill_at_any_moment_leaves_the_old_one_or_the_new_one_whole(run_python: object) -> None:
    number, lost = map(int, run_python(KILLED).stdout.split())  # type: ignore[operator]
    assert number > 10
    assert lost == 1, "one moment, between the two renames, when both are beside"


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
@pytest.mark.parametrize("before", ["old", "new"])
def test_what_fails_between_the_renames_leaves_the_old_one(
    error: BaseException, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "model", os.rename
    files.replace(target, Path.mkdir, lambda: None)
    (target / "mine").write_text("old")

    def fails(source: Path, to: Path) -> None:
        if Path(to if before == "old" else source).name == before:
            monkeypatch.setattr(os, "rename", rename)
            raise error
        rename(source, to)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(type(error)):
        files.replace(target, Path.mkdir, lambda: None)
    assert (target / "mine").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


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
    with pytest.raises(NotADirectoryError), files.one_at_a_time(pipe):
        pass
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
    assert not files.is_running({**mine, "pid": f"../proc/{os.getpid()}"})
    assert not files.is_running({})
    for forged in ("5", "null", "[" * 10**5):
        (tmp_path / "process").write_text(forged)
        assert files.read_process(tmp_path / "process") == {}
