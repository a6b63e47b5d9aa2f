"""Child processes, stop signals, CPU cores, and systems without POSIX."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrorkit import processor, stop_signals, subprocesses


def test_the_same_mirrorkit_comes_first_on_the_path():
    given = {"PYTHONPATH": "/elsewhere", "OTHER": "1"}
    found = subprocesses.with_mirrorkit(given)
    first, rest = found["PYTHONPATH"].split(os.pathsep, 1)
    assert os.path.samefile(os.path.join(first, "mirrorkit/subprocesses.py"), subprocesses.__file__)
    assert (rest, found["OTHER"]) == ("/elsewhere", "1")
    assert given == {"PYTHONPATH": "/elsewhere", "OTHER": "1"}
    assert subprocesses.with_mirrorkit({})["PYTHONPATH"] == first


def test_a_process_is_ended_with_all_that_it_started():
    code = "import subprocess, sys; print('ready', flush=True); subprocess.run(['sleep', '60'])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    subprocesses.send(process)
    assert process.wait(10) == -signal.SIGKILL
    assert process.stdout.read() == b"", "the pipe closes only when the last process that holds it has exited"
    process.stdout.close()
    subprocesses.send(process)  # nobody is left


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_job_runs_where_standard_streams_are_closed(closed: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("open('was here', 'w').close()")
    launch = f"{sys.executable} -m mirrorkit launch --workers 1 {script}"
    environment = subprocesses.with_mirrorkit(os.environ)
    code = subprocess.call(["sh", "-c", f"exec {launch} {closed}"], env=environment, cwd=tmp_path, timeout=60)
    assert code == 0
    assert (tmp_path / "was here").exists()


def test_an_object_in_a_process_of_its_own_where_standard_streams_are_closed(tmp_path: Path) -> None:
    code = """
import numpy as np
from mirrorkit.fetching import Processes
with Processes([1, 2], 1).started(1) as fetch:
    assert fetch(np.arange(2))[0].tolist() == [1, 2]
"""
    environment = {**subprocesses.with_mirrorkit(os.environ), "CODE": code}
    command = f'exec {sys.executable} -c "$CODE" <&- >&-'
    assert subprocess.call(["sh", "-c", command], env=environment, cwd=tmp_path, timeout=60) == 0


@pytest.fixture
def sigterm():
    """SIGTERM as it was, after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield signal.SIGTERM
    signal.signal(signal.SIGTERM, before)


def test_signals_are_caught_and_put_back(sigterm):
    first, second = [], []
    signal.signal(sigterm, lambda number, frame: first.append(number))
    before = stop_signals.catch([sigterm], lambda number, frame: second.append(number))
    os.kill(os.getpid(), sigterm)
    assert (first, second) == ([], [sigterm])
    stop_signals.put_back(before)
    os.kill(os.getpid(), sigterm)
    assert (first, second) == ([sigterm], [sigterm])
    signal.signal(sigterm, signal.SIG_DFL)
    stop_signals.put_back(before)  # does nothing the second time
    assert signal.getsignal(sigterm) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored(sigterm):
    signal.signal(sigterm, signal.SIG_IGN)
    assert stop_signals.catch([sigterm], lambda number, frame: None) == {}
    assert signal.getsignal(sigterm) is signal.SIG_IGN


def test_only_the_main_thread_catches(sigterm):
    before = signal.getsignal(sigterm)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(stop_signals.catch, [sigterm], lambda number, frame: None).result() == {}
        assert not pool.submit(stop_signals.can_catch).result()
    assert stop_signals.can_catch()
    assert signal.getsignal(sigterm) is before


def test_a_handler_that_python_did_not_install_becomes_the_default(sigterm):
    stop_signals.put_back({sigterm: None})
    assert signal.getsignal(sigterm) is signal.SIG_DFL


TWO_CORES = """processor\t: 0
model name\t: AMD EPYC 9654
flags\t\t: fpu sse2 avx avx2 {more}

processor\t: 1
model name\t: AMD EPYC 9654
flags\t\t: fpu sse2 avx avx2 {more}
"""


@pytest.mark.parametrize(
    ("more", "vectors"), [("", "AVX2"), ("avx512f", "AVX-512"), ("avx512f avx512_vnni", "AVX-512 VNNI")]
)
def test_the_model_names_the_widest_vectors(tmp_path, monkeypatch, more, vectors):
    info = tmp_path / "cpuinfo"
    info.write_text(TWO_CORES.format(more=more))
    monkeypatch.setattr(processor, "_INFO", info)
    assert processor.model() == f"AMD EPYC 9654 ({vectors})"
    assert processor.flags() == {"fpu", "sse2", "avx", "avx2", *more.split()}


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(processor.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    assert processor.cores() == 3
    monkeypatch.delattr(processor.os, "sched_getaffinity")
    assert processor.cores() == 64


def test_where_linux_tells_nothing_python_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_INFO", tmp_path / "no-such-file")
    monkeypatch.setattr(processor.platform, "processor", lambda: "arm")
    assert processor.model() == "arm"
    assert processor.flags() == frozenset()


# --- what is used without POSIX: signals, process groups and modules that Windows does not have


WITHOUT = """
import os, runpy, signal, sys

for name in ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGSTOP", "SIGCONT", "SIGCHLD"):
    delattr(signal, name)
for name in ("killpg", "getpgid", "setsid", "sched_getaffinity", "sched_setaffinity", "sysconf", "geteuid", "getuid"):
    delattr(os, name)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None  # an import of it fails

import mirrorkit as mk

for name in mk.__all__:
    getattr(mk, name)
sys.argv[1:] = ["devices", "--devices", "cpu:2"]
runpy.run_module("mirrorkit", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow  # a process of its own; it may be any of its modules that fails
def test_every_module_loads_and_devices_runs(run_python):
    lines = run_python(WITHOUT).stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [[f"/device:CPU:{i}", "computes", "correctly"] for i in (0, 1)]
