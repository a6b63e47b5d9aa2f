"""What the soak does to a run, in which order; and what is left of a run: its processes, its ports."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from jobs import Seen, processes

KILL, TERM, FULL = "SIGKILL", "SIGTERM", "disk full"
STOP_KILL, STOP_GO = "SIGSTOP, 1 s later SIGKILL", "SIGSTOP, 2 s later SIGCONT"
STOP = "SIGSTOP"  # for good: its peers notice, and the launcher ends it
STEP, SAVE, START = "at a step", "within a save", "during the start"


class Strike(NamedTuple):
    """Something that happens to a run at some moment."""

    on: str
    deed: str
    moment: str

    @property
    def kills(self) -> bool:
        """Whether it is a SIGKILL."""
        return self.deed in (KILL, STOP_KILL)


def _kills(on: str, *counts: int) -> dict[Strike, int]:
    """SIGKILL at a step, within a save, during the start, and of a stopped process."""
    kinds = [Strike(on, KILL, STEP), Strike(on, KILL, SAVE), Strike(on, KILL, START), Strike(on, STOP_KILL, STEP)]
    return dict(zip(kinds, counts, strict=True))


def _others(on: str, *, term: int, go: int) -> dict[Strike, int]:
    return {Strike(on, TERM, STEP): term - 1, Strike(on, TERM, SAVE): 1, Strike(on, STOP_GO, STEP): go}


MIX: dict[str, dict[Strike, int]] = {
    "process": _kills("the process", 28, 26, 36, 10)
    | _others("the process", term=6, go=8)
    | {Strike("its disk", FULL, STEP): 3},
    "workers": _kills("a worker", 6, 4, 6, 4)
    | _others("a worker", term=2, go=2)
    | {Strike("a worker", STOP, STEP): 1, Strike("its disk", FULL, STEP): 1},
    "ps": _kills("a worker", 6, 4, 6, 4)
    | _others("a worker", term=2, go=2)
    | {Strike("the ps", KILL, STEP): 1, Strike("the chief", KILL, STEP): 1, Strike("the chief", KILL, SAVE): 1}
    | {Strike("the launcher", TERM, STEP): 1, Strike("its disk", FULL, STEP): 1},
    "launcher": _kills("the launcher", 6, 4, 6, 4)
    | _others("the launcher", term=3, go=2)
    | {Strike("its disk", FULL, STEP): 1},
}


def in_turn(on: str, count: int) -> list[Strike]:
    """So many kills alone, at the three kinds of moments in turn."""
    return [Strike(on, KILL, (STEP, SAVE, START)[number % 3]) for number in range(count)]


def planned(part: str, seed: int, *, quick: bool = False) -> list[Strike]:
    """Return the strikes of a part in a random order; `quick`: one of each kind.

    What a run survives comes before a strike at a step, since only what was ended has a start after it.
    """
    rng = random.Random(f"{seed} {part}")
    counts = {strike: min(count, 1) if quick else count for strike, count in MIX[part].items()}
    order = [strike for strike, count in counts.items() for _ in range(count) if ended_by(part, strike) != NOTHING]
    rng.shuffle(order)
    survivors = [strike for strike, count in counts.items() for _ in range(count) if ended_by(part, strike) == NOTHING]
    for strike in survivors:
        order.insert(rng.choice([i for i, next_ in enumerate(order) if next_.moment == STEP]), strike)
    return order


NOTHING, ONE, ALL, JOB = "nothing", "its task", "all tasks", "the job"


def ended_by(part: str, strike: Strike) -> str:
    """What has ended after a strike: nothing, one task or all (the launcher starts these again), or the job.

    A worker of parameter servers that gets SIGTERM serves until the chief leaves.
    """
    if strike.deed == STOP_GO or (part, strike.on, strike.deed) == ("ps", "a worker", TERM):
        return NOTHING
    if part in ("process", "launcher") or strike.on == "the launcher":
        return JOB
    return ONE if (part, strike.on) == ("ps", "a worker") else ALL


def codes(part: str, strike: Strike) -> tuple[int, ...]:
    """The exit codes that are right for a job that has ended."""
    if strike.kills:
        return (-signal.SIGKILL,)
    return (128 + signal.SIGTERM,) if strike.deed == TERM else (1,)


def said_after(part: str, strike: Strike, task: str) -> str:
    """What has to be said, as a pattern; `task` is the one that was struck."""
    if strike.deed == FULL:
        return r"FileError: .*"
    if strike.deed == STOP:
        return r"ClusterError: .*"
    if ended_by(part, strike) == NOTHING or (strike.kills and part in ("process", "launcher")):
        return ""
    if strike.deed == TERM:
        return r"SIGTERM: saved in .*"
    if ended_by(part, strike) == ONE:
        return rf"launch \| {task} ended with exit code 137 \(SIGKILL\); the others go on"
    # another task may name it and exit before the launcher knows
    return rf"launch \| {task} ended with exit code 137 \(SIGKILL\); ending the others|ClusterError: {task} .*"


def listened() -> set[int]:
    """The TCP ports of this machine at which somebody listens."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in _rows(Path("/proc/net") / table)]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


def _rows(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []


def left_by(folder: Path, belongs: Callable[[int, Seen], bool], ports: Iterable[int], seconds: float) -> list[str]:
    """Wait until these processes of a folder are gone and nobody listens at the ports; return what is left then."""
    deadline, ports = time.monotonic() + seconds, set(ports)
    while True:
        left = [f"process {pid}: {seen.command}" for pid, seen in processes(folder).items() if belongs(pid, seen)]
        left += [f"port {port}" for port in sorted(ports & listened())]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def signal_to(pid: int, deed: str) -> None:
    """Do to a process what is to be done by signals, the waiting included."""
    for part in deed.split(", "):
        waits = re.match(r"(\d+) s later ", part)
        time.sleep(int(waits[1]) if waits else 0)
        os.kill(pid, signal.Signals[part.split()[-1]])


def fill(folder: Path) -> Path:
    """Write to a file until the disk is full; returns the file. What is freed meanwhile the next call takes."""
    other = folder / "other"
    with contextlib.suppress(OSError), other.open("ab", buffering=0) as file:
        while file.write(bytes(1 << 14)):
            pass
    return other


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[None]:
    """A file system in memory; needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
