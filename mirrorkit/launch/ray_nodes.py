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
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mirrorkit.cluster import JOB_TOKEN, Cluster, job_token, unreachable
from mirrorkit.errors import ClusterError, JobError
from mirrorkit.journal import JOURNAL
from mirrorkit.launch.job import LostSlotsError
from mirrorkit.launch.ray_slot import CALL, Slot
from mirrorkit.launch.task import say
from mirrorkit.whole import whole_number

_SETTLED = 3.0  # seconds without a change, after which no more room is waited for
_ANSWERS = 60.0  # seconds in which an actor answers
_LOOK = 0.5  # seconds between two looks at actors
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
        raise ClusterError("on='ray' needs Ray, which is not installed: pip install 'mirrorkit[ray]'.") from None
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
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
    try:
        yield
    finally:
        ray.shutdown()


def pickled(function: Callable[[], Any]) -> bytes:
    """Return a function as Ray sends it: by value where it is that of the script or of a notebook."""
    from ray import cloudpickle

    return bytes(cloudpickle.dumps(function))


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
        results: what the function returned, pickled, by task.
    """

    def __init__(
        self, command: Sequence[str], most: int, share: Share, events: queue.SimpleQueue, call: bytes | None = None
    ) -> None:
        import ray

        self._ray, self._command, self._events, self._share, self._call = ray, command, events, share, call
        self._actor = ray.remote(Slot).options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            max_concurrency=100,  # threads; `stay` keeps one
            scheduling_strategy="SPREAD" if share.spread else "DEFAULT",
        )
        self.count, self._token = 0, _token()
        self.results: dict[str, bytes] = {}
        self._failed_starts, self._is_closed, self._error = 0, False, ""
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
        try:
            ports = self._ray.get([held.actor.free_port.remote() for held in used], timeout=_ANSWERS)
        except self._ray.exceptions.RayError:
            ports = []
        addresses = tuple(f"{held.address}:{port}" for held, port in zip(used, ports, strict=False))
        if len(set(addresses)) < width:  # a node has gone, or two actors of one chose the same port
            time.sleep(_LOOK)
            raise LostSlotsError
        say("launch", f"{width} worker{'s' if width > 1 else ''} on {_counted(addresses)}", sys.stderr)
        whole = Cluster(workers=addresses, source="launch")
        tasks = [replace(whole, task_type="worker", task_index=index) for index in range(width)]
        self._used = {task.task: held for task, held in zip(tasks, used, strict=True)}
        return {task.task: self._environment(task) for task in tasks}

    def start(self, name: str, environment: Mapping[str, str]) -> RayTask:
        """See `job.Engine`."""
        return RayTask(self, name, self._used[name], environment)

    def refresh(self) -> bool:
        """See `slots.Room`; waits while the number changes."""
        before = self.count
        while self.count < len(self._held) and time.monotonic() - self._changed < _SETTLED:
            time.sleep(0.1)
        if self._error:
            raise JobError(self._error)
        return self.count != before

    def look(self) -> None:
        """See `slots.Room`: actors are watched all the time."""

    def close(self) -> None:
        """Give all room back."""
        self._is_closed = True
        self._watcher.join()
        for held in self._held:
            self._ray.kill(held.actor)

    def _environment(self, task: Cluster) -> dict[str, str]:
        own = {"TF_CONFIG": task.to_tf_config(), "PYTHONUNBUFFERED": "1", JOB_TOKEN: self._token}
        own["TF_NUM_INTRAOP_THREADS"] = str(self._share.cpus)
        if not self._share.gpus:  # otherwise Ray sets it for the actor
            own["CUDA_VISIBLE_DEVICES"] = "-1"
        return own if self._call is None else {**own, CALL: ""}

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
        except Exception as error:  # of Ray, whose cluster may be gone: `refresh` raises it
            self._error = f"Ray's nodes cannot be watched any more: {type(error).__name__}: {error}"

    def _take(self, call: Any, held: _Held) -> None:
        """Take what has become of an actor: it was placed, or it is gone."""
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
                self._error = f"Ray cannot start a worker's actor: {str(error).strip()}"
            with self._lock:
                self._held[self._held.index(held)] = self._ask()
            if not was_placed:
                time.sleep(_LOOK)
                return
        else:
            self._failed_starts, held.address = 0, address
            held.waits_for = held.actor.stay.remote()
        self.count = sum(one.address is not None for one in self._held)
        self._changed = time.monotonic()
        self._events.put(self)


class RayTask:
    """A task in the slot of a node; see `job.Running`."""

    def __init__(self, nodes: Nodes, name: str, held: _Held, environment: Mapping[str, str]) -> None:
        self.name = name
        self._nodes, self._ray, self._held = nodes, nodes._ray, held
        journal = environment.get(JOURNAL)
        self._journal = None if journal is None else Path(journal)
        started = held.actor.start.remote(name, nodes._command, dict(environment), os.getcwd(), nodes._call)
        self._follower = threading.Thread(target=self._follow, args=(started,), daemon=True)
        self._follower.start()

    def send(self, number: int) -> None:
        """See `job.Running`."""
        self._held.actor.send.remote(int(number))

    def end(self) -> None:
        """See `job.Running`."""
        self.send(9)
        self._follower.join()

    def _follow(self, started: Any) -> None:
        errors = self._ray.exceptions
        try:
            self._ray.get(started)
            code = self._read()
        except errors.RayActorError:
            say("launch", f"{self.name}: its node {self._held.address} is lost, or its actor has exited", sys.stderr)
            code = 137
        except Exception as error:  # whatever it is: the job must learn that the task has ended
            say("launch", f"{self.name} is lost: {type(error).__name__}: {str(error).strip()}", sys.stderr)
            code = 1
        self._nodes._events.put((self, code))

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
                    assert self._journal is not None
                    with open(self._journal, "a") as file:
                        file.write(f"{line}\n")
                else:
                    say(self.name, line, sys.stderr if kind == "err" else sys.stdout)
            seen += len(news.lines)
            if news.code is not None:
                if news.result is not None:
                    self._nodes.results[self.name] = news.result
                return int(news.code)


def _token() -> str:
    return secrets.token_hex(32) if job_token(os.environ) is None else os.environ[JOB_TOKEN]


def _counted(addresses: Sequence[str]) -> str:
    nodes: dict[str, int] = {}
    for address in addresses:
        node = address.rpartition(":")[0]
        nodes[node] = nodes.get(node, 0) + 1
    return ", ".join(f"{node} ({count})" if count > 1 else node for node, count in nodes.items())
