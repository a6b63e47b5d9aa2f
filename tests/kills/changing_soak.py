"""Random strikes at a job whose number of workers changes: it must end as if nobody had struck it.

    python tests/kills/changing_soak.py [--on machine|ray ...] [--strikes 50] [--write docs/soak.md]

Real digits, 1,600 steps, one to three workers. At random steps a worker, its chief, the launcher, an actor or a node of
Ray is killed, a worker stands still for 30 s, slots or nodes come and go, also within a save. At the end each example
must have counted once in each epoch, weights and history must be those of a fixed number of workers, within 3 x what 1,
2 and 3 undisturbed workers differ by, and no process may be left. The table has the seconds by phase, as the launcher
says them. It needs MNIST in $MIRRORKIT_DATA. The exit code is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path += [
    str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "multiworker", "../examples/benchmarks")
]

import strikes
import watching
from changing_training import problems, result
from harness import machine
from jobs import Process, launched, pid_of, processes, until
from pages import put_between
from ray_nodes import RayNodes

TRAINING = Path(__file__).resolve().parents[1] / "multiworker" / "changing_training.py"
EPOCHS, STEPS = 8, 1600
MOST, STANDS, LIMIT = 3, 30.0, 240.0  # workers; seconds that a worker stands still; seconds for a job to go on
STAND = f"a worker stands still for {STANDS:.0f} s"
WENT_ON = re.compile(
    r"launch \| (?P<workers>\d) workers? from step (?P<step>\d+) on, (?P<seconds>[\d.]+) s after .*\((?P<phases>.*)\); "
    r"(?P<repeated>\d+) steps repeated"
)
PHASES = ("noticed", "stopped", "started", "restored", "first call")
RUNS = Path(__file__).resolve().parents[2] / "docs/figures/changing-soak.json"  # what the last run on each found
BEGIN, FINISH = "<!-- table: written by tests/kills/changing_soak.py -->", "<!-- end of the table of changes -->"


@dataclass
class Struck:
    """What followed a strike: the seconds of each phase until the training went on, and how many steps it repeated."""

    deed: str
    seconds: float
    phases: dict[str, float] | None  # None where the launcher says none: it was started again, or nothing had to end
    repeated: int


@dataclass
class Series:
    """A job that is struck again and again."""

    on: str  # "machine" or "ray"
    folder: Path
    rng: random.Random
    nodes: RayNodes | None
    job: Process | None = None
    heard: int = 0  # lines of it that were looked at
    done: int = 0  # steps
    struck: list[Struck] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = 2
        (self.folder / "slots").write_text("2")

    def run(self, strikes: int) -> None:
        """Strike so often, then let the training come to its end."""
        deeds = self._deeds()
        plan = [name for _ in range(strikes // len(deeds) + 1) for name in deeds]
        self.rng.shuffle(plan)
        with contextlib.ExitStack() as stack:
            self._start(stack)
            for number, deed in enumerate(plan[:strikes]):
                if self.done >= STEPS - 100:  # it may be through before the strike
                    break
                self._reach(self.done + max(10, (STEPS - 100 - self.done) // (strikes - number + 2)))
                began = time.time()
                alone, ends = self._tasks() == ["worker 0"], deed != STAND
                if deeds[deed]() == "the launcher":
                    self._start(stack)
                if alone and not ends:  # nobody notices, and nothing has to end
                    deed = STAND.replace("a worker", "the only worker")
                self.struck.append(self._went_on(deed, began, ends=(ends or not alone) and "launcher" not in deed))
                print(f"{number + 1:>3} of {strikes}: {self.struck[-1]}, at step {self.done}", flush=True)
            assert self.job is not None
            if code := self.job.end(LIMIT):
                raise AssertionError(f"exit code {code}\n{self.job.text[-5000:]}")

    def _start(self, stack: contextlib.ExitStack) -> None:
        if self.job is not None:
            self.job.close()
            self._gone()
        where = ("--on", "ray") if self.nodes else ("--slots", self.folder / "slots")
        options = ("--workers", f"1:{MOST}", "--max-restarts", 1000, *where)
        own = ("--epochs", EPOCHS, "--pace", 1.0)
        environment = self.nodes.environment if self.nodes else {}
        self.job = stack.enter_context(launched(self.folder, *options, TRAINING, self.folder, *own, **environment))
        self.heard = 0

    def _deeds(self) -> dict[str, Callable[[], object]]:
        """What may be done, by name."""
        deeds: dict[str, Callable[[], object]] = {
            "a worker is killed": lambda: self._kill(self._task()),
            "the chief is killed": lambda: self._kill("worker 0"),
            "the launcher is killed": self._kill_launcher,
            STAND: self._stand_still,
        }
        if self.nodes is None:
            deeds["slots come or go"] = self._change
            deeds["slots come or go within a save"] = lambda: (self._save(), self._change())
        else:
            deeds["an actor of Ray is killed"] = lambda: self._kill(self._task(), ancestors=2)
            deeds["a node is lost, or comes"] = self._change
            deeds["a node is lost, or comes, within a save"] = lambda: (self._save(), self._change())
        return deeds

    def _reach(self, step: int) -> None:
        """Wait until so many steps are done."""
        self._until(lambda: self._said(r"step (\d+)$", at_least=step) is not None, f"step {step}")

    def _said(self, pattern: str, *, at_least: int = 0) -> re.Match[str] | None:
        """The newest line with the pattern since `heard`, whose first group is a number of at least so much."""
        assert self.job is not None
        found = None
        for _, line in list(self.job.lines)[self.heard :]:
            if (match := re.search(pattern, line)) and int(match[1]) >= at_least:
                found = match
        if found is not None and pattern.startswith("step"):
            self.done = max(self.done, int(found[1]))
        return found

    def _until(self, condition: Callable[[], object], what: str, *, every: float = 0.02) -> None:
        assert self.job is not None
        until(condition, what, by=self.job.process, every=every)

    def _went_on(self, deed: str, began: float, *, ends: bool) -> Struck:
        """Wait until the training goes on; `ends`: with a line of the launcher, which has ended an attempt."""
        assert self.job is not None
        self.heard = len(self.job.lines) if "launcher" not in deed else 0
        if not ends:
            self._until(lambda: self._said(r"step (\d+)$"), "a step")
            return Struck(deed, time.time() - began, None, 0)
        self._until(lambda: self._said(WENT_ON.pattern), "going on")
        found = self._said(WENT_ON.pattern)
        assert found is not None
        return Struck(deed, float(found["seconds"]), phases_of(found["phases"]), int(found["repeated"]))

    def _tasks(self) -> list[str]:
        return sorted({seen.task for seen in processes(self.folder).values() if seen.task.startswith("worker")})

    def _task(self) -> str:
        return self.rng.choice(self._tasks())

    def _kill(self, task: str, ancestors: int = 0) -> None:
        pid = pid_of(self.folder, task)
        assert pid, f"{task} is not running"
        for _ in range(ancestors):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)

    def _kill_launcher(self) -> str:
        assert self.job is not None
        self.job.process.kill()
        return "the launcher"

    def _stand_still(self) -> None:
        pid = pid_of(self.folder, self._task())
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + STANDS
        while time.monotonic() < end and Path(f"/proc/{pid}").exists():
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _save(self) -> None:
        checkpoints = self.folder / "checkpoints"
        self._until(lambda: watching.unfinished_in(checkpoints), "a save", every=0.001)  # which takes milliseconds

    def _change(self) -> None:
        self.room = self.rng.choice([count for count in range(1, MOST + 1) if count != self.room])
        if self.nodes is not None:
            self.nodes.set(self.room)
            return
        (self.folder / "slots").write_text(str(self.room))
        assert self.job is not None
        os.kill(self.job.process.pid, signal.SIGHUP)

    def _gone(self) -> None:
        """Wait until nothing of the job is left."""
        left = strikes.left_by(self.folder, lambda pid, seen: bool(seen.task), (), 30)
        assert not left, f"still running: {left}"


def phases_of(text: str) -> dict[str, float]:
    """The seconds of each phase, of "noticed 0.1, stopped 2.3"."""
    parts = (part.strip().rpartition(" ") for part in text.split(","))
    return {name: float(seconds) for name, _, seconds in parts}


def undisturbed(folder: Path, workers: int) -> dict[str, np.ndarray]:
    """The result of a fixed number of workers."""
    folder.mkdir()
    with launched(folder, "--workers", workers, TRAINING, folder, "--epochs", EPOCHS) as job:
        if code := job.end(LIMIT):
            raise AssertionError(f"exit code {code}\n{job.text[-5000:]}")
    return result(folder)


def as_markdown(runs: dict[str, dict[str, Any]]) -> str:
    """The table of what the last run of each kind found."""
    head = ["on", "strike", "strikes", "seconds", *PHASES, "steps repeated"]
    lines, made = [head, ["---", "---", *["---:"] * (len(head) - 2)]], []
    for on, run in runs.items():
        struck = [Struck(**one) for one in run["struck"]]
        for deed in sorted({one.deed for one in struck}):
            ones = [one for one in struck if one.deed == deed]
            told = [one.phases for one in ones if one.phases is not None]
            phases = [f"{statistics.median(p[name] for p in told):.1f}" if told else "" for name in PHASES]
            seconds = [one.seconds for one in ones]
            most = f"{statistics.median(seconds):.1f} (up to {max(seconds):.1f})"
            repeated = f"0 to {most_of}" if (most_of := max(one.repeated for one in ones)) else "0"
            lines.append([on, deed, str(len(ones)), most, *phases, repeated])
        about = run["about"]
        end = "; ".join(run["wrong"]) or "with the expected result"
        where = f"{machine.in_a_line(about)}; {about['time'][:10]}, `{about['command']}`"
        made.append(f"{on}: {len(struck)} strikes, {end} ({where}, seed {run['seed']}).")
    return "\n".join([*made, "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def main() -> int:
    """Run, print and write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs="+", choices=["machine", "ray"], default=["ray", "machine"])
    parser.add_argument("--strikes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="the page to put the table into; keeps the run")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="changing-") as place:
        fixed = [undisturbed(Path(place, f"fixed-{workers}"), workers) for workers in range(1, MOST + 1)]
        for on in options.on:
            folder = Path(place, on)
            folder.mkdir()
            nodes = RayNodes(2) if on == "ray" else None
            series = Series(on, folder, random.Random(f"{options.seed} {on}"), nodes)
            wrong: list[str] = []
            try:
                series.run(options.strikes)
                series._gone()
                wrong += problems(result(folder), fixed, EPOCHS)
            except (AssertionError, RuntimeError, TimeoutError) as error:
                print(error, series.job and series.job.text[-5000:], flush=True)
                wrong.append(str(error).partition("\n")[0])
            finally:
                if nodes is not None:
                    nodes.close()
            struck = [asdict(one) for one in series.struck]
            found[on] = {"struck": struck, "wrong": wrong, "seed": options.seed, "about": machine.about()}
    text = as_markdown(found)
    print(text)
    if options.write:
        RUNS.write_text(json.dumps(found, indent=1) + "\n")
        put_between(options.write, text, BEGIN, FINISH)
    return int(any(run["wrong"] for run in found.values()))


if __name__ == "__main__":
    sys.exit(main())
