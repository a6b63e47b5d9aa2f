"""The command of docs/security.md that runs a job in a network namespace of Linux."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import until

import mirrorkit as mk

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
# Each task meets the other one, listens where TensorFlow's server would, and stays until it may leave.
LISTENS = """
import json, os, pathlib, socket, time
from mirrorkit.cluster import detect, rendezvous
cluster = detect()
rendezvous.wait_for_all(cluster, timeout=30, must_agree={})
server = socket.create_server(('', int(cluster.workers[cluster.task_index].split(':')[1])))
pathlib.Path(f'reached-{cluster.task_index}').write_text(json.dumps(cluster.workers))
while not os.path.exists('leave'): time.sleep(0.05)
print('user', os.getuid(), [name for _, name in socket.if_nameindex()])
"""


def in_namespace() -> list[str]:
    (line,) = re.findall("^unshare .*$", PAGE.read_text(), re.MULTILINE)
    *before, script = shlex.split(line)
    assert script.count(" python ") == 1
    return [*before, script.replace(" python ", f" {shlex.quote(sys.executable)} ")]


def refusal() -> str:
    if not (shutil.which("unshare") and shutil.which("ip")):
        return "needs unshare and ip"
    *before, _ = in_namespace()
    done = subprocess.run([*before, "ip link set lo up"], stderr=subprocess.PIPE, text=True)
    return done.stderr.strip() if done.returncode else ""


@pytest.mark.parametrize("inside", [True, False])
def test_tasks_reach_each_other_and_nobody_else_reaches_them(inside: bool, tmp_path: Path) -> None:
    if inside and (why := refusal()):
        pytest.skip(why)
    (tmp_path / "train.py").write_text(LISTENS)
    plain = [sys.executable, "-m", "mirrorkit", "launch", "--workers", "2", "train.py"]
    options: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(Path(mk.__file__).parents[1])}
    with subprocess.Popen(in_namespace() if inside else plain, env=environment, **options) as process:
        reached = [tmp_path / f"reached-{index}" for index in (0, 1)]
        until(lambda: all(file.exists() for file in reached), "both tasks", by=process, limit=40)
        time.sleep(0.1)
        found = []
        for address in json.loads(reached[0].read_text()):
            try:
                socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=5).close()
                found.append("reached")
            except OSError as error:
                found.append(type(error).__name__)
        (tmp_path / "leave").touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, found) == (0, ["ConnectionRefusedError" if inside else "reached"] * 2), err
    assert out.count(f"user {0 if inside else os.getuid()} ") == 2
    assert (tmp_path / "reached-1").stat().st_uid == os.getuid()
    assert out.count("['lo']") == (2 if inside else 0) or len(socket.if_nameindex()) == 1
    assert not inside or "listen at all interfaces" not in err
