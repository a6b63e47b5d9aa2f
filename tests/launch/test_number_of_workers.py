"""Jobs whose number of workers changes while they run, with scripts of plain Python; see test_job.py too."""

from __future__ import annotations

import errno
import os
import queue
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import assert_gone

from mirrorkit.__main__ import main
from mirrorkit.errors import JobError
from mirrorkit.launch import job, launch, launcher, slots, this_machine
from mirrorkit.launch.process import Process

# Each attempt adds its number of workers to the file `widths`, and its cluster to `clusters`; `attempt` counts from 1.
ATTEMPT = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
task, width = config["task"]["index"], len(config["cluster"]["worker"])
cluster = json.dumps(config["cluster"])
if task == 0:
    with open("widths", "a") as file:
        file.write(f"{width} ")
    with open("clusters", "a") as file:
        file.write(f"{cluster}\\n")
while not Path("clusters").exists() or cluster not in Path("clusters").read_text().splitlines():
    time.sleep(0.01)
attempt = Path("clusters").read_text().splitlines().index(cluster) + 1
def room(count):
    Path("room").write_text(f"{count}\\n")
    os.kill(int(os.environ["LAUNCHER"]), signal.SIGHUP)
def wait():
    while True: time.sleep(0.05)
def saves(code=143):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
"""


pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER", str(os.getpid()))
    monkeypatch.setattr(launcher.socket, "if_nameindex", lambda: [(1, "lo")])
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.2)


def widths() -> list[int]:
    return [int(width) for width in Path("widths").read_text().split()]


def test_the_command(script: Any) -> None:
    path = script(ATTEMPT + "sys.exit(0 if width == 1 else 3)")
    assert main(["launch", "--workers", "1:2", str(path)]) == 0
    assert widths() == [2, 1]


@pytest.mark.parametrize("text", ["two", "1:", "1:4:8"])
def test_a_number_that_is_none_is_explained(text: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--workers", text, "script.py"])
    assert f"write a number, or a minimum and a maximum, as in 1:4; found {text!r}" in capsys.readouterr().err


def test_where_slots_are_looked_up() -> None:
    Path("room").write_text("2\n")
    Path("look.sh").write_text("#!/bin/sh\necho slots:\ncat room\n")
    Path("look.sh").chmod(0o755)
    long = "cat room #" + 400 * "x"  # longer than the name of a file may be
    assert [slots.count(source) for source in ("room", "echo slots; cat room", "look.sh", long)] == [2, 2, 2, 2]


def test_ctrl_c_ends_a_command_that_says_how_much_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: Process, seconds: float) -> None:
        deadline = time.monotonic() + 20
        while not (Path("pid").exists() and Path("pid").read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(Process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        slots.count("echo $$ > pid; exec sleep 300")
    assert_gone([int(Path("pid").read_text())])


def test_slots_that_a_network_file_system_fails_to_find_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks them up, which must go on."""
    Path("room").write_text("2")
    machine = this_machine.ThisMachine([], lambda width: {}, queue.SimpleQueue(), 4, "room")

    def stale(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stale)
        assert not machine.refresh()
    Path("room").write_text("3")
    assert machine.refresh()
    machine.close()


@pytest.mark.parametrize("argument", ["x" * 200_000, "a\0b"], ids=["too long", "with NUL"])
def test_a_task_that_cannot_be_started_leaves_nothing(
    argument: str, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    with pytest.raises((OSError, ValueError)):
        launch(script(ATTEMPT), [argument], workers=(1, 2))
    assert not list(tmp_path.glob("mirrorkit-*"))
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        *(("nothing", "exit status 127"), ("false", "exit status 1"), ("true", "found ''"), ("room", "found 'four'")),
        *(("echo -1", "found '-1'"), ("echo 1.5", r"found '1\.5'"), ("printf %05000d 1", "found '0000")),
    ],
)
def test_slots_that_are_no_number_at_the_beginning(source: str, text: str, script: Any) -> None:
    Path("room").write_text("four")
    with pytest.raises(JobError, match=rf"(?s)slots='{source}' .*{text}") as caught:
        launch(script(ATTEMPT), workers=(1, 4), slots=source)
    assert len(str(caught.value)) < 300
    assert not Path("widths").exists()


def test_slots_that_are_no_number_later_on_stay_as_they_were(capsys: Any) -> None:
    Path("room").write_text("2")
    machine = this_machine.ThisMachine([], lambda width: {}, queue.SimpleQueue(), 4, "room")
    for content, is_new, room in (("x", False, 2), ("y", False, 2), ("3", True, 3)):
        Path("room").write_text(content)
        assert (machine.refresh(), machine.room) == (is_new, room)
    machine.close()
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "slots" in line]
    assert said.endswith("found 'x'. It is taken for 2, as before.")


def test_slots_are_looked_up_by_and_by(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "_SECONDS", 0.2)
    Path("room").write_text("1")
    code = "saves()\nif attempt == 1: Path('room').write_text('2'); wait()"
    assert launch(script(ATTEMPT + code), workers=(1, 2), slots="room") == 0
    assert widths() == [1, 2]


def test_a_script_that_is_through_when_it_is_to_save_is_not_started_again(script: Any) -> None:
    Path("room").write_text("1")
    assert launch(script(ATTEMPT + "saves(0)\nroom(2)\nwait()"), workers=(1, 2), slots="room") == 0
    assert widths() == [1]


def test_ctrl_c_while_the_tasks_save_ends_the_job(script: Any) -> None:
    Path("room").write_text("1")
    then = "os.kill(int(os.environ['LAUNCHER']), signal.SIGINT); time.sleep(0.5); sys.exit(143)"
    code = f"signal.signal(signal.SIGINT, signal.SIG_IGN)\ndef save(*_): {then}\nsignal.signal(signal.SIGTERM, save)\n"
    assert launch(script(ATTEMPT + code + "room(2); wait()"), workers=(1, 2), slots="room") == 143
    assert widths() == [1]


def test_a_line_says_when_the_training_went_on(script: Any, capsys: Any) -> None:
    code = """
from mirrorkit import journal
path = os.environ["MIRRORKIT_JOURNAL"]
if task: wait()
journal.write(path, "began", 0)
journal.write(path, "restored", 8 * (attempt - 1))
time.sleep(0.2 * (attempt - 1))
for steps in range(1, 12):
    journal.write(path, "steps", 8 * (attempt - 1) + steps)
time.sleep(0.4)
sys.exit(7 if attempt == 1 else 0)
"""
    assert launch(script(ATTEMPT + code), workers=(1, 2)) == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "from step" in line]
    number = r"(\d+\.\d)"
    found = re.fullmatch(
        rf"launch \| 1 worker from step 8 on, {number} s after the last step \(noticed {number}, stopped {number}, "
        rf"started {number}, restored {number}, first call {number}\); 3 steps repeated",
        said,
    )
    assert found, said
    total, noticed, *_, first = map(float, found.groups())
    assert noticed >= 0.4  # the sleep after the last step
    assert 0.1 <= first < total


def test_a_job_of_a_fixed_number_of_workers_keeps_no_journal(script: Any) -> None:
    assert launch(script("import os; assert 'MIRRORKIT_JOURNAL' not in os.environ"), workers=1) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": (3, 1)}, r"workers .* found \(3, 1\)"),
        ({"workers": (0, 1)}, r"workers .* found \(0, 1\)"),
        ({"workers": (1, 2, 3)}, r"workers .* found \(1, 2, 3\)"),
        ({"workers": 1.5}, r"workers .* found 1\.5"),
        ({"workers": (1, 2), "ps": 1}, r"ps=1 .* workers=\(1, 2\)"),
        ({"workers": 2, "ps": -1}, "ps .* found -1"),
        ({"workers": 2, "slots": "room"}, "slots='room' .* maximum"),
        ({"workers": (1, 2), "wait": -1}, "wait"),
        ({"workers": 1, "grace": -1}, "grace"),
        ({"workers": 1, "grace": float("nan")}, "grace"),
        ({"workers": 1, "max_restarts": -1}, "max_restarts"),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, Any], text: str, script: Any) -> None:
    with pytest.raises(JobError, match=text):
        launch(script("pass"), **options)


# The second ends by itself when nobody reads what it prints, the third at the launcher's end at the latest.
LIVES = {
    "sleeps": "time.sleep(300)",
    "prints": "while True: print('x', flush=True)",
    "writes the journal": "while True: journal.write(os.environ['MIRRORKIT_JOURNAL'], 'steps', 1)",
}


@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_left_of_a_job_whose_launcher_is_killed(
    life: str, script: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(Path("temporary").absolute()))
    beats = "import sys, time\nwhile True: open(f'beats-{sys.argv[1]}', 'a').write('x'); time.sleep(0.02)"
    begin = "import os, subprocess, sys, time\nfrom mirrorkit import journal\n"
    begin += f"subprocess.Popen([sys.executable, '-c', {beats!r}, str(os.getpid())])\nprint('here', flush=True)\n"
    process = started("--workers", "1:2", script(begin + LIVES[life]))
    while len(list(Path().glob("beats-*"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    assert len(os.listdir("temporary")) == 2  # a folder with the pipe of each
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 20
    while left := [*os.listdir("temporary"), *(str(path) for path in Path().glob("beats-*"))]:
        assert time.monotonic() < deadline, left
        for path in Path().glob("beats-*"):
            path.unlink()  # and it comes again where the process lives
        time.sleep(0.2)
