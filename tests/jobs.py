"""Real jobs on this machine: started, watched line by line, struck, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mirrorkit as mk
from mirrorkit import subprocesses
from mirrorkit.launch import layout

ROOT = Path(mk.__file__).parents[1]
LAUNCH = (sys.executable, "-m", "mirrorkit", "launch")
WORKERS = ROOT / "tests" / "multiworker" / "interrupted_training.py"
SERVERS = ROOT / "tests" / "train" / "parameter_server" / "training.py"
LIMIT = 280.0  # seconds in which anything that is waited for has to come
# With PYTHONFAULTHANDLER a process that gets SIGABRT prints where its threads are.
_VARIABLES = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


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
        raise LookupError(f"No line has {pattern!r}. The last ones:\n{self.text[-5000:]}")

    def says(self, pattern: str) -> bool:
        """Whether a line with this pattern came."""
        return any(re.search(pattern, line) for _, line in list(self.lines))

    def wait_for(self, pattern: str) -> None:
        """Wait until a line with this pattern comes."""
        until(lambda: self.says(pattern) or self.process.poll() is not None, pattern)
        self.line(pattern)

    def end(self, limit: float = LIMIT) -> int:
        """Wait for the end; returns the exit code. Where it does not come, the error says where its threads are."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)
            self._reader.join(10)
            raise TimeoutError(f"no end within {limit:g} s\n{self.text[-8000:]}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)


def environment(**changes: str) -> dict[str, str]:
    """This process's, with this mirrorkit on the path and without a cluster."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG" and not name.startswith("TF_NUM_")}
    return {**subprocesses.with_mirrorkit(kept), **_VARIABLES, **changes}


@contextlib.contextmanager
def process(folder: Path, *command: object, **changes: str) -> Iterator[Process]:
    """A process with its temporary files in a folder; it is gone at the end of the block."""
    started = Process([*command], folder, environment(TMPDIR=str(folder), **changes))
    try:
        yield started
    finally:
        started.close()


def launched(folder: Path, *arguments: object, **changes: str) -> contextlib.AbstractContextManager[Process]:
    """Start `python -m mirrorkit launch ARGUMENTS`, as `process` does."""
    return process(folder, *LAUNCH, *arguments, **changes)


def finished(folder: Path, *arguments: object, limit: float = LIMIT) -> Process:
    """Run a script on two workers until its end, which must be a good one."""
    with launched(folder, "--workers", 2, *arguments) as job:
        code = job.end(limit)
    assert code == 0, f"exit code {code}\n{job.text[-8000:]}"
    return job


@contextlib.contextmanager
def started(folder: Path, *command: object, workers: int = 2, ps: int = 0) -> Iterator[dict[str, Process]]:
    """Start a script in every task without a launcher, as Slurm and Kubernetes do."""
    own = layout.environments(layout.clusters(workers, ps=ps), environ=environment(TMPDIR=str(folder)))
    tasks: dict[str, Process] = {}
    try:
        for name, variables in own.items():
            tasks[name] = Process([sys.executable, *command], folder, variables)
        yield tasks
    finally:
        for task in tasks.values():
            task.close()


def until(
    condition: Callable[[], object],
    what: str,
    *,
    by: subprocess.Popen | None = None,
    every: float = 0.02,
    limit: float = LIMIT,
) -> None:
    """Wait for a condition; where `by` is to fulfil it, not beyond the end of that process."""
    deadline = time.monotonic() + limit
    while not condition():
        if by is not None and by.poll() is not None:
            raise RuntimeError(f"The process ended before {what}, with exit code {by.returncode}.")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {limit:g} s")
        time.sleep(every)


def is_running(pid: int) -> bool:
    """Whether the process is there, and no zombie that its adoptive parent has yet to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_gone(pids: Sequence[int]) -> None:
    """Wait for the end of processes that somebody else has started."""
    deadline = time.monotonic() + 20
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


class Seen(NamedTuple):
    """A process that somebody else has started."""

    command: str
    task: str  # "" for one that is no task of a cluster
    ports: frozenset[int]  # of all tasks of its cluster
    port: int  # its own; 0 for none


def processes(folder: Path) -> dict[int, Seen]:
    """The living processes that have this folder among their arguments or in their environment, or work in it."""
    found = {}
    name = os.fsencode(folder)
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            zombie = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            inside = name in command or name in variables or name in os.fsencode(os.readlink(place / "cwd"))
        except OSError:
            continue
        if inside and not zombie and int(place.name) != os.getpid():
            configs = [v.partition(b"=")[2].decode() for v in variables.split(b"\0") if v.startswith(b"TF_CONFIG=")]
            cluster = mk.cluster.detect({"TF_CONFIG": configs[0]}) if configs else None
            text = command.replace(b"\0", b" ").decode(errors="replace")
            if cluster is None:
                found[int(place.name)] = Seen(text, "", frozenset(), 0)
            else:
                ports = {task: int(address.rpartition(":")[2]) for task, address in cluster.addresses.items()}
                found[int(place.name)] = Seen(text, cluster.task, frozenset(ports.values()), ports[cluster.task])
    return found


def pid_of(folder: Path, task: str) -> int:
    """The process of a task of the launcher that works in this folder, without its keeper; 0 where there is none."""
    found = [pid for pid, seen in processes(folder).items() if seen.task == task and "keeper.py" not in seen.command]
    return found[0] if found else 0


def send(pid: int, number: signal.Signals) -> float:
    """Send a signal; returns when that was."""
    os.kill(pid, number)
    return time.time()
