"""A soak: 100 kills in a row of one process, 20 each of workers, of parameter servers' workers and of the launcher.

    python tests/kills/soak.py [--only process|workers|ps|launcher ...] [--quick] [--write docs/soak.md]

The kills are mixed with SIGTERM, SIGSTOP and a full disk (which needs root). After each strike no process that it ended
may be left and nobody may listen at its ports, all checkpoints must be readable, and the next start must go on from the
newest. At the end a process and workers must have the bits of a run that nobody disturbed; parameter servers, which are
asynchronous, must have counted every step once. Each strike becomes a line of `--lines`, in which a part replaces what
it wrote before; the table is made of these lines (`--table` does only that). `--quick`: one strike of each kind. The
exit code is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "../examples/benchmarks")]

import soak_table
import strikes
import watching
from harness import machine
from jobs import Seen, environment, processes, until
from pages import put_between
from soak_table import End, Struck
from strikes import ALL, JOB, NOTHING, ONE, Strike
from watching import STEPS_PER_EPOCH, newest_of, progress_of, unfinished_in

TRAINING = Path(__file__).with_name("killed_training.py")
LAUNCH = ("-m", "mirrorkit", "launch", "--workers", 2)
STARTED_BY: dict[str, Sequence[object]] = {
    "process": (),
    "workers": (*LAUNCH, "--max-restarts", 1000),
    "ps": (*LAUNCH, "--ps", 1, "--max-restarts", 1000),
    "launcher": LAUNCH,
}
EPOCHS = {"process": 80, "workers": 50, "ps": 90, "launcher": 50}
PATIENCE = 20.0  # seconds for what was ended to be gone
QUICK_EPOCHS = {"process": 16, "workers": 20, "ps": 40, "launcher": 16}
TASKS = {"a worker": "worker", "the chief": "chief", "the ps": "ps 0"}
AUTOGRAPH = "__autograph_generated_file"  # TensorFlow's, which removes them when Python exits
STEPS_PER_CALL = 2  # of that training: so many updates may a worker of parameter servers that dies have made in vain
KEEP = 3  # checkpoints
FAILED = r"launch \| .* ended with .*"
RESTARTED = r"launch \| restart \d+"
LIMIT = 120.0  # seconds for what follows a strike
END = 600.0  # and for the training to come to its end


@dataclass
class Soak:
    """One part: a training that is struck again and again, then comes to its end."""

    part: str
    plan: Sequence[Strike]
    epochs: int
    folder: Path
    seed: int
    options: Sequence[str] = ()  # of the training
    done: list[Struck] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.part}")
        names = ("checkpoints", "log", "pace", "temporary", "out", "reference")
        self.checkpoints, self.log, self.pace, self.temporary, self.out, self.reference = (
            self.folder / name for name in names
        )
        self.job: subprocess.Popen[bytes] | None = None
        self.said, self.heard = self.folder / "said", 0  # what the job says, and how much of it was looked at
        self.files: list[str] = []  # that are left among the temporary ones
        self.began_at = self.reached = 0  # the newest checkpoint when this life of the training began, and its steps

    def run(self) -> list[str]:
        """Let all strikes happen; return what was wrong at the end."""
        self.temporary.mkdir()
        if self.part != "ps":
            self._start(self.folder / "said_undisturbed", "--out", self.reference, wait=True)
        fills_up = any(strike.deed == strikes.FULL for strike in self.plan)
        disk = strikes.small_file_system if fills_up else _folder
        with disk(self.checkpoints, "64m"):
            try:
                for number, strike in enumerate(self.plan):
                    self.done.append(self._struck(strike, len(self.plan) - number))
                    print(f"{number + 1:>3} of {len(self.plan)}: {soak_table.told(self.done[-1])}", flush=True)
                return self._end()
            finally:
                for pid in processes(self.folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if self.job is not None:
                    self.job.wait()
                strikes.left_by(self.folder, lambda pid, seen: True, (), PATIENCE)

    def _start(self, said: Path, *arguments: object, wait: bool = False) -> subprocess.Popen[bytes]:
        """Start the training, by the launcher perhaps; what it says goes into a file."""
        by, more = STARTED_BY[self.part], ("--epochs", self.epochs, *arguments, *self.options)
        command = [str(part) for part in (sys.executable, *by, TRAINING, *more)]
        with said.open("wb") as file:
            own = environment(TMPDIR=str(self.temporary))
            process = subprocess.Popen(command, env=own, stdout=file, stderr=subprocess.STDOUT)
        if wait:
            try:
                process.wait(END)
            finally:
                process.kill()
            if process.returncode:
                raise RuntimeError(f"The training failed:\n{said.read_text()[-3000:]}")
        return process

    def _running(self) -> subprocess.Popen[bytes]:
        """The job, started again where it has ended."""
        if self.job is None:
            self._new_life()
            if self.part == "ps":
                self.pace.touch()
            own = ("--out", self.out, "--folder", self.checkpoints, "--log", self.log, "--pace", self.pace)
            self.job, self.heard = self._start(self.said, *own), 0
        return self.job

    def _new_life(self) -> None:
        self.log.write_bytes(b"")
        self.began_at, self.reached = newest_of(self.checkpoints), 0

    def _new(self) -> str:
        """What the job has said since it was looked at last."""
        return self.said.read_bytes()[self.heard :].decode(errors="replace")

    def _has_said(self, pattern: str) -> bool:
        return re.search(pattern, self._new()) is not None

    def _struck(self, strike: Strike, strikes_left: int) -> Struck:
        job, torn = self._running(), unfinished_in(self.checkpoints)
        ends = strikes.ended_by(self.part, strike)
        pid, before = self._moment(strike, job, strikes_left)
        task = before[pid].task if pid in before else ""
        problems = [f"{line}, though nobody struck" for line in re.findall(FAILED, self._new())]
        self.heard = self.said.stat().st_size
        newest, pattern = newest_of(self.checkpoints), strikes.said_after(self.part, strike, task)
        if strike.moment == strikes.SAVE:  # which takes milliseconds: nothing else comes in between
            until(lambda: unfinished_in(self.checkpoints), "a save", by=job, every=0.001)
        struck_at = time.monotonic()
        if strike.deed == strikes.FULL:
            self._until(lambda: not strikes.fill(self.checkpoints) or self._has_said(pattern), job)
            if ends != JOB:
                (self.checkpoints / "other").unlink()
        else:
            strikes.signal_to(pid, strike.deed)
        problems += self._after(ends, strike, job, before)
        if ends in (ONE, ALL):  # the others notice a stopped worker after 10 s
            self._until(lambda: self._has_said(pattern), job)
        ports = {port for seen in before.values() for port in seen.ports}
        belongs: dict[str, Callable[[int, Seen], bool]] = {
            NOTHING: lambda number, seen: False,
            ONE: lambda number, seen: number in before and seen.task == task,
            ALL: lambda number, seen: bool(seen.ports & ports),
            JOB: lambda number, seen: True,
        }
        left = strikes.left_by(self.folder, belongs[ends], ports if ends in (ALL, JOB) else (), PATIENCE)
        seconds = time.monotonic() - struck_at
        (self.checkpoints / "other").unlink(missing_ok=True)
        restarted = RESTARTED if ends in (ONE, ALL) else ""
        self._until(lambda: self._has_said(pattern) and self._has_said(restarted), job)
        said = self._new()
        self.heard += len(said.encode())
        life = watching.inspected(self.began_at, torn, self.checkpoints, self.log)
        self.reached = max(self.reached, life.reached)
        found = re.search(pattern, said)
        wrong = {
            f"nobody said {pattern!r}, but {said[-500:]!r}": not found,
            f"the newest checkpoint was {newest}, then {life.newest}": life.newest < newest,
            f"SIGTERM: saved {life.newest} of {life.reached} steps": (
                strike.deed == strikes.TERM and ends != NOTHING and life.newest < life.reached
            ),
        }
        problems += life.problems + [text for text, is_so in wrong.items() if is_so]
        starts = 1 if ends == JOB else len(re.findall(RESTARTED, said))
        if ends == JOB:
            self.job = None
        elif ends == ALL:
            self._new_life()
        saw = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", found[0] if found else "").replace(str(self.folder), "FOLDER")
        about = (*strike, life.began, life.reached, life.newest, life.unfinished, starts, saw[:120], round(seconds, 2))
        return Struck(self.part, *about, left, problems)

    def _moment(self, strike: Strike, job: subprocess.Popen[bytes], left: int) -> tuple[int, dict[int, Seen]]:
        """Wait for the moment, or the step after which to wait for a save; return whom to strike, and who is there."""
        wanted = f"worker {self.rng.randrange(2)}" if strike.on == "a worker" else TASKS.get(strike.on, "")
        done = max(newest_of(self.checkpoints), self.reached)
        target = watching.next_target(done, self.epochs * STEPS_PER_EPOCH, left, self.rng)
        if self.part == "ps" and strike.moment == strikes.START:  # of a worker, while the chief trains or waits for it
            time.sleep(self.rng.uniform(0.3, 4.0))
        else:
            if self.part == "ps":
                until(self._all_serve, "all tasks", by=job)
                target = progress_of(self.log)[1] + self.rng.randrange(1, 9)
            watching.wait_for(strike.moment, job, self.log, target, self.rng)
        before: dict[int, Seen] = {}

        def chosen() -> list[int]:
            before.update(processes(self.folder))
            return [pid for pid, seen in before.items() if seen.task == wanted and "keeper.py" not in seen.command]

        if wanted:
            until(chosen, wanted, by=job)
        pid = chosen()[0] if wanted else job.pid
        return pid, before

    def _all_serve(self) -> bool:
        """Whether the chief has begun, and every task listens that has a port."""
        found = processes(self.folder).values()
        time.sleep(0.05)
        there = {seen.port for seen in found if "keeper.py" not in seen.command and seen.task}
        wanted = {port for seen in found for port in seen.ports}
        return progress_of(self.log)[1] > 0 and there == wanted and wanted <= strikes.listened()

    def _after(self, ends: str, strike: Strike, job: subprocess.Popen[bytes], before: dict[int, Seen]) -> list[str]:
        """Wait for what follows a strike; return what is wrong with it."""
        if ends == JOB:
            code = job.wait(LIMIT)
            return [] if code in strikes.codes(self.part, strike) else [f"exit code {code}"]
        if ends != NOTHING:
            return []
        steps = progress_of(self.log)[1]
        self._until(lambda: progress_of(self.log)[1] > steps, job)
        now = processes(self.folder)
        wrong = [f"ended: {seen.command}" for pid, seen in before.items() if pid not in now]
        return wrong if progress_of(self.log)[1] > steps else [*wrong, "the training did not go on"]

    def _until(self, condition: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
        """Wait for a condition, until nobody can fulfil it any more."""
        deadline = time.monotonic() + LIMIT
        while not condition() and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.02)

    def _end(self) -> list[str]:
        """Let the training come to its end; return what is wrong with it."""
        job = self._running()
        self.pace.unlink(missing_ok=True)
        code = job.wait(END)
        began, _ = progress_of(self.log)
        left = strikes.left_by(self.folder, lambda pid, seen: True, (), PATIENCE)
        files = sorted(path.name for path in self.checkpoints.iterdir())
        self.files = sorted(os.listdir(self.temporary))
        wrong = {
            f"exit code {code}: {self._new()[-1000:]}": code != 0,
            f"it went on from {began}, the newest was {self.began_at}": began not in (None, self.began_at),
            f"left running: {left}": bool(left),
            f"temporary files: {self.files}": any(not name.startswith(AUTOGRAPH) for name in self.files),
            f"left among the checkpoints: {files}": len(files) != KEEP or any(not f.endswith(".npz") for f in files),
        }
        problems = [text for text, is_so in wrong.items() if is_so]
        problems += [f"{line}, though nobody struck" for line in re.findall(FAILED, self._new())]
        return problems + (self._miscounted() if self.part == "ps" else self._differences()) if code == 0 else problems

    def _differences(self) -> list[str]:
        names = [""] if self.part == "process" else ["0", "1"]
        pairs = [(Path(f"{self.reference}{names[0]}.npz"), Path(f"{self.out}{name}.npz")) for name in names]
        return [problem for pair in pairs for problem in watching.differences(*pair)]

    def _miscounted(self) -> list[str]:
        with np.load(f"{self.out}0.npz") as file:
            steps, updates = (int(count) for count in file["counted"])
        wanted, killed = self.epochs * STEPS_PER_EPOCH, sum(strike.kills for strike in self.plan)
        wrong = {
            f"{steps} steps instead of {wanted}": steps != wanted,
            f"{updates} updates for {wanted} steps": not wanted <= updates <= wanted + STEPS_PER_CALL * killed,
        }
        return [text for text, is_so in wrong.items() if is_so]


def _folder(path: Path, size: str) -> contextlib.AbstractContextManager[None]:
    path.mkdir()
    return contextlib.nullcontext()


def soak(part: str, seed: int, *, quick: bool = False) -> tuple[list[Struck], End]:
    """Let a part happen in a folder of its own."""
    begun = time.monotonic()
    epochs = (QUICK_EPOCHS if quick else EPOCHS)[part]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        one = Soak(part, strikes.planned(part, seed, quick=quick), epochs, Path(folder), seed)
        try:
            problems = one.run()
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
    seconds = round(time.monotonic() - begun)
    starts = 1 + sum(struck.starts for struck in one.done)
    return one.done, End(part, seed, epochs * STEPS_PER_EPOCH, starts, seconds, one.files, problems, machine.about())


def main() -> int:
    """Run the parts, keep their lines, print and write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STARTED_BY), default=list(STARTED_BY), help="these parts")
    parser.add_argument("--quick", action="store_true", help="one strike of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the order and of the moments")
    parser.add_argument("--lines", type=Path, default=soak_table.LINES, help="the file with a line for each strike")
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of the lines there are")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended
    for part in [] if options.table else options.only:
        soak_table.keep(options.lines, *soak(part, options.seed, quick=options.quick))
    struck, ends = soak_table.read(options.lines)
    text = soak_table.as_markdown(struck, ends)
    print(text)
    if options.write:
        put_between(options.write, text, soak_table.BEGIN, soak_table.FINISH)
    return 1 if any(one.problems or getattr(one, "left", []) for one in (*struck, *ends)) else 0


if __name__ == "__main__":
    sys.exit(main())
