"""The launcher with scripts of plain Python, which start and end at once; with TensorFlow in tests/multiworker."""

from __future__ import annotations

import array
import fcntl
import os
import queue
import re
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs import assert_gone

from mirrorkit.errors import ArgumentError, ClusterError
from mirrorkit.launch import job, launch, launcher, process

TASK = "import json, os, sys; task = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
# Says which processes there are, and stays: itself, and a child that a script of its kind may have.
TELLS = (
    "import os, signal, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    "{before}\n"
    "print('pids', os.getpid(), os.getppid(), child.pid)\n"
)
# Python runs a handler between two sleeps: one that comes just before a sleep begins waits for its end.
STAYS = TELLS + "for _ in range(3000): time.sleep(0.1)\n"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture(autouse=True)
def _no_warning(monkeypatch):
    """As on a machine that nobody reaches: the test of the warning sets its own."""
    monkeypatch.setattr(launcher.socket, "if_nameindex", lambda: [(1, "lo")])


def pids(process: subprocess.Popen, tasks: int) -> list[list[int]]:
    """For each task: its script, its keeper, and its script's child."""
    found: dict[str, list[int]] = {}
    while len(found) < tasks:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        if match := re.fullmatch(r"(.+) \| pids (\d+) (\d+) (\d+)\n", line):
            found[match[1]] = [int(pid) for pid in match.groups()[1:]]
    return [found[name] for name in sorted(found)]


def test_each_task_runs_the_script_with_its_arguments_and_its_lines_carry_its_name(script, capsys):
    code = TASK + "print('out', task, sys.argv[1:]); print('two\\nlines'); print('err', task, file=sys.stderr)"
    assert launch(script(code), ["--epochs", "3"], workers=2) == 0
    out, err = capsys.readouterr()
    expected = [f"worker {i} | {line}" for i in (0, 1) for line in (f"out {i} ['--epochs', '3']", "two", "lines")]
    assert sorted(out.splitlines()) == sorted(expected)
    assert sorted(err.splitlines()) == ["worker 0 | err 0", "worker 1 | err 1"]


def test_a_job_with_ps_has_a_chief_and_is_over_when_the_chief_is(script, capsys):
    code = "import json, os, pathlib, time; task = json.loads(os.environ['TF_CONFIG'])['task']['type']\n"
    code += "print('I am', task, flush=True); here = pathlib.Path(__file__).parent; (here / task).touch()\n"
    code += "while task != 'chief' or not ((here / 'ps').exists() and (here / 'worker').exists()): time.sleep(0.05)"
    assert launch(script(code), workers=1, ps=1) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        *("chief | I am chief", "ps 0 | I am ps", "worker 0 | I am worker"),
    ]


def test_the_first_failure_ends_the_others_and_gives_the_exit_code(script, capsys, monkeypatch):
    monkeypatch.setattr(job, "_SECONDS_AFTER_FAILURE", 0.5)
    fails = "import time\nif task == 1: time.sleep(1); print('bye'); sys.exit(7)\n"
    code = TASK + fails + STAYS.format(before=IGNORES)
    assert launch(script(code), workers=3) == 7
    out, err = capsys.readouterr()
    assert "worker 1 | bye" in out.splitlines()
    assert "launch | worker 1 ended with exit code 7; ending the others" in err.splitlines()
    left = [int(pid) for line in out.splitlines() if "pids" in line for pid in line.split()[-3:]]
    assert len(left) == 6
    assert_gone(left)


def test_a_failed_job_starts_again_on_new_ports_until_it_is_through(script, capsys, tmp_path, monkeypatch):
    code = TASK + (
        "print('ports', json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])\n"
        "if task == 1: seen = open('seen', 'a'); seen.write('x'); sys.exit(5 if seen.tell() < 3 else 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert launch(script(code), workers=2, max_restarts=3) == 0
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if "restart" in line] == [f"launch | restart {i} of 3" for i in (1, 2)]
    assert len({line for line in out.splitlines() if line.startswith("worker 1 | ports")}) == 3
    assert launch(script("import sys; sys.exit(4)"), workers=1, max_restarts=1) == 4
    assert capsys.readouterr().err.count("restart") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_nothing_starts_again(script, started, number):
    leave = f"signal.signal({int(number)}, lambda *_: (print('saved'), os._exit(9)))"
    process = started("--workers", 2, "--max-restarts", 3, script(STAYS.format(before=leave)))
    tasks = pids(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 9
    assert sorted(out.splitlines()) == ["worker 0 | saved", "worker 1 | saved"]
    assert f"launch | {number.name}: passed on to every task" in err.splitlines()
    assert_gone([pid for task in tasks for pid in task])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_comes_before_the_script_runs_ends_the_task(number):
    def pending() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})  # as Ray starts processes
        os.kill(os.getpid(), number)

    lifeline, other = os.pipe()
    command = [sys.executable, "-I", "-S", process._KEEPER, str(lifeline), "", sys.executable, "-c", "print('runs')"]
    with open(lifeline, "rb"), open(other, "wb"):
        done = subprocess.run(
            command, preexec_fn=pending, pass_fds=(lifeline,), start_new_session=True, capture_output=True, timeout=30
        )
    assert (done.returncode, done.stdout) == (-number, b"")


def test_a_script_that_does_not_leave_is_killed_after_the_grace(script, started):
    process = started("--workers", 1, "--grace", 0.5, script(STAYS.format(before=IGNORES)))
    tasks = pids(process, 1)
    process.terminate()
    assert process.wait(20) == 137
    assert_gone(tasks[0])


def test_a_signal_that_comes_just_before_a_wait_is_not_left_until_its_end(script, monkeypatch):
    class Queue(queue.SimpleQueue):
        has_come = False

        def get(self, block=True, timeout=None):
            """As where the signal comes between Python's last look and the wait: its handler runs after the wait."""
            if timeout == 0 or Queue.has_come:  # the third would end this process
                return super().get(block, timeout)
            Queue.has_come = True
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
            try:
                return super().get(block, min(timeout or 60, 60))
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    monkeypatch.setattr(job.queue, "SimpleQueue", Queue)
    start = time.monotonic()
    assert launch(script("import time; time.sleep(300)"), workers=1, grace=0) in (130, 137)
    assert time.monotonic() - start < 30


def test_the_second_ctrl_c_kills(script, started):
    ignores = "signal.signal(signal.SIGINT, lambda *_: print('no'))"
    process = started("--workers", 1, script(STAYS.format(before=ignores)))
    tasks = pids(process, 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "worker 0 | no\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 137
    assert_gone(tasks[0])


def test_signals_do_their_work_while_nobody_reads_what_the_launcher_prints(script, started, tmp_path):
    saves = "signal.signal(signal.SIGTERM, lambda *_: open('saved', 'w').close())\n"
    saves += "open('pid', 'w').write(str(os.getpid()))\n"
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    process = started("--workers", 1, script(f"import os, signal\n{saves}while True: print(1000 * 'x')"), stdout=writes)
    os.close(writes)
    with open(reads, "rb"):
        seen = -1
        while seen != (seen := held(reads)) or seen < 30_000:  # until the pipe is full
            time.sleep(0.5)
        pid = int((tmp_path / "pid").read_text())
        process.terminate()
        deadline = time.monotonic() + 20
        while not (tmp_path / "saved").exists():
            assert time.monotonic() < deadline, "the signal was not passed on"
            time.sleep(0.05)
        for _ in range(2):
            process.terminate()
            time.sleep(0.5)  # two signals that come at once are one
        assert process.wait(20) == 143
    assert_gone([pid])


def held(pipe: int) -> int:
    """The number of bytes in a pipe that nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_that_of_the_job_where_a_full_disk_takes_no_line(code, script, started):
    with open("/dev/full", "wb") as full:
        process = started("--workers", 1, script(f"print('lost'); raise SystemExit({code})"), stdout=full.fileno())
    assert process.wait(20) == code


def test_nothing_outlives_a_launcher_that_is_killed(script, started):
    process = started("--workers", 2, script(STAYS.format(before=IGNORES)))
    tasks = pids(process, 2)
    process.kill()
    assert_gone([pid for task in tasks for pid in task])


def test_a_script_does_not_outlive_its_keeper(script, started):
    process = started("--workers", 2, script(STAYS.format(before="pass")))
    (own, keeper, child), other = pids(process, 2)
    process.send_signal(signal.SIGSTOP)  # so that it is not the launcher which ends the script
    os.kill(keeper, signal.SIGKILL)
    assert_gone([own])
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 137
    assert_gone([child, *other])


def test_what_a_script_leaves_running_is_ended_with_it(script, started):
    process = started("--workers", 1, script(TELLS.format(before="pass")))
    tasks = pids(process, 1)
    assert process.wait(20) == 0
    assert_gone(tasks[0])


def test_no_tensorflow_in_the_launcher(run_python, script):
    result = run_python(
        f"""
        import json, sys
        from mirrorkit.__main__ import main
        code = main(["launch", "--workers", "1", {str(script("print('ran')"))!r}])
        print(json.dumps([code, sorted({{"tensorflow", "keras", "numpy"}} & set(sys.modules))]))
        """
    )
    assert "worker 0 | ran" in result.stdout
    assert result.json() == [0, []]


@pytest.mark.parametrize("kind", [ArgumentError, ClusterError])  # the second is its kind of 0.1
def test_a_script_that_is_not_there_is_refused_before_anything_starts(kind):
    with pytest.raises(kind, match=r"nowhere\.py"):
        launch("nowhere.py", workers=2)


def test_launch_from_another_thread_is_refused(script):
    with ThreadPoolExecutor() as pool, pytest.raises(ArgumentError, match="main thread"):
        pool.submit(launch, script("pass"), workers=1).result()


def test_a_machine_that_nobody_reaches_is_not_warned_about(monkeypatch, script, capsys):
    assert launch(script("pass"), workers=1) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(launcher.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert launch(script("pass"), workers=1) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("launch | warning: TensorFlow's servers in the tasks listen at all interfaces")
    assert "docs/security.md" in line
