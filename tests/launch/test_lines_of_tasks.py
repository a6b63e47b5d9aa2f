"""The lines of tasks: nobody may read them any more, and processes that have left the group may go on printing."""

from __future__ import annotations

import collections
import os

import pytest


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_job_goes_on_when_nobody_reads_its_lines_any_more(script, started, tmp_path, terminal):
    code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('closed'): time.sleep(0.01)\n"
    code += "for _ in range(20000): print('x' * 100)\nopen('done', 'w').close()"
    reads, writes = os.openpty() if terminal else os.pipe()
    process = started("--workers", 1, script(code), stdout=writes)
    os.close(writes)
    with open(reads, "rb") as lines:
        assert lines.readline().rstrip() == b"worker 0 | first"
    (tmp_path / "closed").touch()
    assert process.wait(20) == 0, process.stderr.read()
    assert (tmp_path / "done").exists()


def test_a_line_without_end_is_printed_in_parts(script, started):
    code = "import sys\nfor _ in range(64): sys.stdout.write('x' * 2**20)\nprint(flush=True)"
    process = started("--workers", 1, script(code))
    lines = 0
    for line in process.stdout:
        assert line.startswith("worker 0 | ")
        assert len(line) < 2**17, "the launcher would hold all of it"
        lines += 1
    assert lines >= 1024
    assert process.wait(20) == 0, process.stderr.read()


@pytest.mark.slow
def test_the_launcher_exits_while_processes_that_it_cannot_end_print(script, started):
    floods = "import subprocess, sys\nlines = 'while True: print(200 * chr(65))'\n"
    floods += "subprocess.Popen([sys.executable, '-c', lines], start_new_session=True)"
    process = started("--workers", 4, script(floods))
    (last,) = collections.deque(process.stdout, maxlen=1)  # all are read; they would take much memory
    assert process.wait(60) == 0, process.stderr.read()
    assert last.endswith("AAAA\n")
