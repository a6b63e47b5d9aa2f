"""The engine of a job on a Ray cluster: its nodes are where tasks run, and say how many workers there is room for.

For each worker that a job may have, the launcher asks Ray for an actor with a worker's share of a node. Ray places as
many as there is room for, and the others wait for nodes that come. Where a node goes, so do its actors, and others are
asked for. An actor never restarts by itself (`max_restarts=0`): when an attempt ends, and how many workers the next one
has, is the launcher's to say. https://docs.ray.io/en/latest/ray-core/actors.html
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mirrorkit.cluster import JOB_TOKEN, Cluster, job_token, unreachable
from mirrorkit.errors import ArgumentError, ClusterError, JobError
from mirrorkit.journal import JOURNAL
from mirrorkit.launch.job import LostSlotsError
from mirrorkit.launch.ray_slot import CALL, Slot
from mirrorkit.launch.task import say
from mirrorkit.launch.widths import workers_text
from mirrorkit.whole import whole_number

_SETTLED = 3.0  # seconds without a change, after which no more room is waited for
_ANSWERS = 60.0  # seconds in which an actor answers
_LOOK = 0.5  # seconds between two looks at actors
_SECONDS_TO_DIE = 10.0  # of a task, after SIGKILL
_MOST_FAILED_STARTS = 3  # of an actor, in a row


class Share(NamedTuple):
    """What each worker needs of a node, and whether Ray spreads workers over nodes."""

    cpus: int = 1
    gpus: int = 0
    spread: bool = False

    def require(self) -> None:
        """Refuse what is no share.

        Raises:
            JobError: no number of CPUs or GPUs.
        """
        whole_number("cpus_per_worker", self.cpus, JobError, least=1)
        whole_number("gpus_per_worker", self.gpus, JobError, least=0)


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Connect this process with the Ray cluster of RAY_ADDRESS or of this machine, unless it is connected.

    Raises:
        ClusterError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ClusterError("on='ray' needs Ray, which is not installed: pip install ray.") from None
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():
            raise ClusterError("This process is connected by Ray Client (ray://). Run it on a node of the cluster.")
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "auto"
    named = "Start one with `ray start --head`, or name another's in RAY_ADDRESS"
    if address != "auto" and ("://" in address or ":" not in address):
        raise ClusterError(
            f"RAY_ADDRESS is {address!r}, but launch runs on a node of the cluster. {named} as host:port."
        )
    if address != "auto" and unreachable({"Ray": address}, seconds=10):  # Ray would wait for minutes
        raise ClusterError(f"There is no Ray cluster at {address!r}: nobody listens there. {named}.")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ClusterError(f"There is no Ray cluster at {address!r}: {error} {named}.") from error
    except RuntimeError as error:  # another version of Ray or Python, among others
        raise ClusterError(f"The Ray cluster at {address!r} cannot be used from here: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def pickled(function: Callable[[], Any]) -> bytes:
    """Return a function as Ray sends it: by value where it is that of the script or of a notebook.

    Raises:
        ArgumentError: it cannot be sent.
    """
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:  # of whatever it holds
        raise ArgumentError(
            f"{function!r} cannot be sent to the workers: {type(error).__name__}: {error}. Open files, locks and "
            "sessions within the function."
        ) from error


@dataclass(eq=False)
class _Held:
    """An actor that was asked for, and its node's address once it has been placed."""

    actor: Any
    waits_for: Any  # the call that returns when it is placed, then that which never returns
    address: str | None = None


class Nodes:
    """Room for workers on a Ray cluster; see `job.Engine` and `slots.Room`.

    Args:
        command: of each task, without the interpreter.
        most: workers.
        share: of a node, for each.
        events: those of the job.
        call: the pickled function that the command runs, if it runs one.

    Attributes:
        count: for how many workers there is room now.
        problem: why there is no more; "" where there may be.
        result: what the function returned on worker 0, pickled.
    """

    def __init__(
        self, command: Sequence[str], most: int, share: Share, events: queue.SimpleQueue, call: bytes | None = None
    ) -> None:
        import ray

        self.command, self.call, self.events = command, call, events
        self.result: bytes | None = None
        self.problem = ""
        self._ray, self._share = ray, share
        self._actor = ray.remote(Slot).options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            max_concurrency=100,  # threads; `stay` keeps one
            scheduling_strategy="SPREAD" if share.spread else "DEFAULT",
        )
        self.count, self._token = 0, _token()
        self._failed_starts, self._is_closed = 0, False
        self._changed = time.monotonic()
        self._lock = threading.Lock()
        self._held = [self._ask() for _ in range(most)]
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        """See `job.Engine`."""
        with self._lock:
            placed = [held for held in self._held if held.address is not None]
        used = sorted(placed, key=lambda held: str(held.address))[:width]
        addresses = tuple(f"{held.address}:{port}" for held, port in zip(used, self._ports(used), strict=False))
        if len(set(addresses)) < width:  # a node has gone, or two actors of one chose the same port
            time.sleep(_LOOK)
            raise LostSlotsError
        say("launch", f"{workers_text(width)} on {_counted(addresses)}", sys.stderr)
        whole = Cluster(workers=addresses, source="launch")
        tasks = [replace(whole, task_type="worker", task_index=index) for index in range(width)]
        self._used = {task.task: held for task, held in zip(tasks, used, strict=True)}
        return {task.task: self._environment(task) for task in tasks}

    def _ports(self, used: Sequence[_Held]) -> Sequence[int]:
        """Return a free port of each; none where one of them is gone, or does not answer: that one is given up."""
        calls = [held.actor.free_port.remote() for held in used]
        if not calls:
            return []
        _, silent = self._ray.wait(calls, num_returns=len(calls), timeout=_ANSWERS)
        for call, held in zip(calls, used, strict=True):
            if call in silent:
                self._ray.kill(held.actor)
        try:
            return [] if silent else list(self._ray.get(calls))
        except self._ray.exceptions.RayActorError:
            return []

    def start(self, name: str, environment: Mapping[str, str]) -> RayTask:
        """See `job.Engine`."""
        return RayTask(self, name, self._used[name], environment)

    def refresh(self) -> bool:
        """See `slots.Room`; waits while the number changes."""
        before = self.count
        while self.count < len(self._held) and time.monotonic() - self._changed < _SETTLED:
            time.sleep(0.1)
        return self.count != before

    def close(self) -> None:
        """Give all room back."""
        self._is_closed = True
        self._watcher.join()
        for held in self._held:
            with contextlib.suppress(Exception):  # the others are given back all the same
                self._ray.kill(held.actor)

    def _environment(self, task: Cluster) -> dict[str, str]:
        own = {"TF_CONFIG": task.to_tf_config(), "PYTHONUNBUFFERED": "1", JOB_TOKEN: self._token}
        own["TF_NUM_INTRAOP_THREADS"] = str(self._share.cpus)
        if not self._share.gpus:  # otherwise Ray sets it for the actor
            own["CUDA_VISIBLE_DEVICES"] = "-1"
        return own if self.call is None else {**own, CALL: ""}

    def _ask(self) -> _Held:
        actor = self._actor.remote()
        return _Held(actor, actor.address.remote())

    def _watch(self) -> None:
        try:
            while not self._is_closed:
                calls = {held.waits_for: held for held in self._held}
                done, _ = self._ray.wait(list(calls), num_returns=1, timeout=_LOOK)
                for call in done:
                    self._take(call, calls[call])
        except Exception as error:  # of Ray, whose cluster may be gone
            self.count = 0
            self.problem = f"Ray's nodes cannot be watched any more: {type(error).__name__}: {error}"
            self.events.put(self)

    def _take(self, call: Any, held: _Held) -> None:
        """Handle an actor that was placed, or has died."""
        errors = self._ray.exceptions
        try:
            address = self._ray.get(call)
        except errors.ActorUnavailableError:  # its node may be gone, or does not answer for a moment
            time.sleep(_LOOK)
            held.waits_for = held.actor.stay.remote() if held.address else held.actor.address.remote()
            return
        except errors.RayError as error:
            was_placed = held.address is not None
            self._failed_starts = 0 if was_placed else self._failed_starts + 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                self.problem = f"Ray cannot start the actor of a worker: {str(error).strip()}"
                self.events.put(self)
            with self._lock:
                self._held[self._held.index(held)] = self._ask()
            if not was_placed:
                time.sleep(_LOOK)
                return
        else:
            self._failed_starts, self.problem, held.address = 0, "", f"[{address}]" if ":" in address else address
            held.waits_for = held.actor.stay.remote()
        self.count = sum(one.address is not None for one in self._held)
        self._changed = time.monotonic()
        self.events.put(self)


class RayTask:
    """A task in the slot of a node; see `job.Running`."""

    def __init__(self, nodes: Nodes, name: str, held: _Held, environment: Mapping[str, str]) -> None:
        import ray

        self.name, self.is_lost = name, False
        self._ray, self._nodes, self._held = ray, nodes, held
        journal = environment.get(JOURNAL)
        self._journal = None if journal is None else Path(journal)
        self._started = held.actor.start.remote(name, nodes.command, dict(environment), os.getcwd(), nodes.call)
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def send(self, number: int) -> None:
        """See `job.Running`; an actor that is still there some seconds after SIGKILL is killed itself."""
        self._held.actor.send.remote(int(number), self._started)  # after the start
        if number == signal.SIGKILL:
            timer = threading.Timer(_SECONDS_TO_DIE, self._give_up)
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """See `job.Running`."""
        self.send(signal.SIGKILL)
        self._follower.join()

    def _give_up(self) -> None:
        if self._follower.is_alive():
            self._ray.kill(self._held.actor)

    def _follow(self) -> None:
        try:
            self._ray.get(self._started)
            code = self._read()
        except Exception as error:  # whatever it is, the job must learn that the task has ended
            self.is_lost = isinstance(error, self._ray.exceptions.RayActorError)
            why = "its node is lost, or its actor has exited" if self.is_lost else f"{type(error).__name__}: {error}"
            say("launch", f"{self.name} on {self._held.address}: {why}", sys.stderr)
            code = 128 + signal.SIGKILL if self.is_lost else 1
            with contextlib.suppress(Exception):
                self._ray.kill(self._held.actor)  # what still runs there must not go on beside the next attempt
        self._nodes.events.put((self, code))

    def _read(self) -> int:
        """Pass on what the task prints until it has exited; return its exit code."""
        seen = 0
        while True:
            try:
                news = self._ray.get(self._held.actor.read.remote(seen))
            except self._ray.exceptions.ActorUnavailableError:
                time.sleep(_LOOK)
                continue
            for kind, line in news.lines:
                if kind == "journal":
                    self._note(line)
                else:
                    say(self.name, line, sys.stderr if kind == "err" else sys.stdout)
            seen += len(news.lines)
            if news.code is not None:
                if news.result is not None:
                    self._nodes.result = news.result
                return int(news.code)

    def _note(self, line: str) -> None:
        """Add a line to the journal; on a full disk the training goes on without."""
        assert self._journal is not None
        with contextlib.suppress(OSError), open(self._journal, "a") as file:
            file.write(f"{line}\n")


def _token() -> str:
    return secrets.token_hex(32) if job_token(os.environ) is None else os.environ[JOB_TOKEN]


def _counted(addresses: Sequence[str]) -> str:
    nodes: dict[str, int] = {}
    for address in addresses:
        node = address.rpartition(":")[0]
        nodes[node] = nodes.get(node, 0) + 1
    return ", ".join(f"{node} ({count})" if count > 1 else node for node, count in nodes.items())
