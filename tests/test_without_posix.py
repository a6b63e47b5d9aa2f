"""What is used without POSIX: signals, process groups and modules that Windows does not have."""

from __future__ import annotations

import pytest

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
