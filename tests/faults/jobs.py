"""Real jobs on this machine to which something happens: started, watched line by line, and gone at the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import mirrorkit as mk
from mirrorkit.launch import layout

ROOT = Path(mk.__file__).parents[1]
WORKERS = ROOT / "tests" / "multiworker" / "interrupted_training.py"
SERVERS = ROOT / "tests" / "train" / "parameter_server" / "training.py"
LIMIT = 280.0  # seconds in which anything that is waited for has to come


class Process:
    """A process whose lines are kept, each with the time at which it came."""

    def __init__(self, command: list[object], folder: Path, environment: Mapping[str, str]) -> None:
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [str(part) for part in command],
            env=dict(environment),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend((time.time(), line.rstrip("\n")) for line in lines)

    @property
    def text(self) -> str:
        """All it said."""
        return "\n".join(line for _, line in self.lines)

    def line(self, pattern: str) -> tuple[float, str]:
        """When a line with this pattern came, and what it says from there on; raises LookupError where none did."""
        for moment, line in list(self.lines):
            if match := re.search(pattern, line):
                return moment, line[match.start() :]
        raise LookupError(f"No line has {pattern!r}. The last ones:\n{self.text[-2000:]}")

    def says(self, pattern: str) -> bool:
        """Whether a line with this pattern came."""
        return any(re.search(pattern, line) for _, line in list(self.lines))

    def wait_for(self, pattern: str) -> None:
        """Wait until a line with this pattern comes."""
        until(lambda: self.says(pattern) or self.process.poll() is not None, pattern)
        self.line(pattern)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(LIMIT)
        finally:
            self.close()

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {LIMIT:g} s")
        time.sleep(0.05)


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """This process's, with this mirrorkit on the path and without a cluster."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG" and not name.startswith("TF_NUM_")}
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": str(folder)}
    return {**kept, **own, **changes}


def launched(folder: Path, *arguments: object) -> Process:
    """Start `python -m mirrorkit launch ARGUMENTS`."""
    return Process([sys.executable, "-m", "mirrorkit", "launch", *arguments], folder, environment(folder))


def started(folder: Path, *command: object, workers: int = 2, ps: int = 0) -> dict[str, Process]:
    """Start a script in every task without a launcher, as Slurm and Kubernetes do."""
    found = layout.environments(layout.clusters(workers, ps=ps), environ=environment(folder))
    return {name: Process([sys.executable, *command], folder, own) for name, own in found.items()}


def close(tasks: Mapping[str, Process]) -> None:
    """Kill what is left."""
    for task in tasks.values():
        task.close()


def running(folder: Path) -> dict[int, tuple[str, str]]:
    """The processes with this folder among their arguments: for each its command, and its task where it has one."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            variables = (place / "environ").read_bytes().split(b"\0")
            zombie = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if str(folder) in command and not zombie and int(place.name) != os.getpid():
            config = [v.partition(b"=")[2].decode() for v in variables if v.startswith(b"TF_CONFIG=")]
            cluster = mk.cluster.detect({"TF_CONFIG": config[0]}) if config else None
            found[int(place.name)] = command, cluster.task if cluster else ""
    return found


def pid_of(folder: Path, task: str) -> int:
    """The process of a task of the launcher that trains in this folder, without its keeper; 0 where there is none."""
    found = [pid for pid, (command, name) in running(folder).items() if name == task and "keeper.py" not in command]
    return found[0] if found else 0


def send(pid: int, number: signal.Signals) -> float:
    """Send a signal; returns when that was."""
    os.kill(pid, number)
    return time.time()
