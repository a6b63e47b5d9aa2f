"""A job on a Ray cluster: its nodes are where tasks run, and say how many workers there is room for.

For each worker that a job may have, the launcher asks Ray for an actor with a worker's share of a node. Ray places as
many as there is room for, and the others wait for nodes that come. Where a node goes, so do its actors, and others are
asked for. An actor never restarts by itself (`max_restarts=0`): when an attempt ends, and how many workers the next one
has, is the launcher's to say. https://docs.ray.io/en/latest/ray-core/actors.html
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

from mirrorkit.arguments import whole_number
from mirrorkit.cluster import Cluster, as_each_task, unreachable
from mirrorkit.errors import ArgumentError, ClusterError, JobError
from mirrorkit.launch import layout
from mirrorkit.launch.output import tell, workers_text
from mirrorkit.launch.process import ROOM, Tell
from mirrorkit.launch.ray_slot import Slot
from mirrorkit.subprocesses import KILL
from mirrorkit.within import started

_SETTLED = 3.0  # seconds without a change, after which no more room is waited for
_ANSWERS = 60.0  # seconds in which an actor answers
_LOOK = 0.5  # seconds until what went wrong is tried again
_SECONDS_TO_DIE = 10.0  # of a task, after SIGKILL
_MOST_FAILED_STARTS = 3  # of an actor, in a row
_KILLED = 128 + KILL  # the exit code of a script
_numbers = itertools.count(1)  # of the questions to actors, so that each knows which of them is new


@dataclass(frozen=True)
class WorkerResources:
    """What each worker needs of a node, and whether Ray spreads workers over nodes."""

    cpus: int = 1
    gpus: int = 0
    spread: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        whole_number("cpus_per_worker", self.cpus, JobError)
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
    if address != "auto":
        if "://" in address or ":" not in address:
            raise ClusterError(
                f"RAY_ADDRESS is {address!r}, but launch runs on a node of the cluster. {named} as host:port."
            )
        if unreachable({"Ray": address}, seconds=10):  # Ray would wait for minutes
            raise ClusterError(f"There is no Ray cluster at {address!r}: nobody listens there. {named}.")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:  # the second, of another version of Ray or Python, among others
        raise ClusterError(f"There is no Ray cluster at {address!r} to use from here: {error} {named}.") from error
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


class RayProcess:
    """A script in the slot of a node; see `Process`."""

    def __init__(self, actor: Any, tell: Tell, *arguments: Any) -> None:
        self._actor, self._tell = actor, tell
        self._started = actor.start.remote(*arguments)
        self._following = started(self._follow)

    def send(self, number: int) -> None:
        """See `Process`; an actor that is still there some seconds after SIGKILL is killed itself."""
        self._actor.send.remote(int(number), self._started)  # after the start
        if number == KILL:
            started(self._give_up)

    def end(self) -> None:
        """See `Process`."""
        self.send(KILL)
        self._following.result()

    def _give_up(self) -> None:
        if not wait([self._following], _SECONDS_TO_DIE).done:
            _kill(self._actor)

    def _follow(self) -> None:
        """Pass on what the script prints and writes until it has exited."""
        import ray

        try:
            ray.get(self._started)
            what = ""
            while what != "exit":
                for what, value in _answer(self._actor.read, next(_numbers)):
                    if (what, value) == ("exit", _KILLED):  # Ray kills what an actor has started before that exits
                        time.sleep(_LOOK)
                        _answer(self._actor.address)  # raises where it has
                    self._tell(what, value)
        except Exception as error:  # whatever it is, the job must learn that the task has ended
            is_lost = isinstance(error, ray.exceptions.RayActorError)
            why = "its node is lost, or its actor has exited" if is_lost else f"{type(error).__name__}: {error}"
            self._tell("err", why)
            _kill(self._actor)  # what still runs there must not go on beside the next attempt
            self._tell(*("lost", _KILLED) if is_lost else ("exit", 1))


@dataclass
class _Held:
    """The room of one worker: an actor, and its node once Ray has placed it."""

    actor: Any = None
    node: str = ""


@dataclass(eq=False)
class RayNodes:
    """Room for workers on a Ray cluster; see `ThisMachine`.

    Args:
        command: of each task.
        events: those of the job.
        most: workers.
        share: of a node, for each.
        call: the pickled function that the command runs, if it runs one.
    """

    command: Sequence[str]
    events: queue.SimpleQueue
    most: int
    share: WorkerResources
    call: bytes | None = None
    problem: str = ""

    def __post_init__(self) -> None:
        """Ask for the actors, each in a thread."""
        import ray

        self._actor = ray.remote(Slot).options(
            num_cpus=self.share.cpus,
            num_gpus=self.share.gpus,
            max_restarts=0,
            max_concurrency=100,  # threads; `stay` and `read` wait in theirs
            scheduling_strategy="SPREAD" if self.share.spread else "DEFAULT",
        )
        self._is_closed, self._changed = False, time.monotonic()
        self._held = [_Held() for _ in range(self.most)]
        self._holding = [started(functools.partial(self._hold, held)) for held in self._held]

    @property
    def room(self) -> int:
        """See `ThisMachine`."""
        return len(self._placed)

    @property
    def _placed(self) -> list[_Held]:
        return [held for held in self._held if held.node]

    def refresh(self) -> bool:
        """See `ThisMachine`."""
        before = self.room
        while self.room < len(self._held) and time.monotonic() - self._changed < _SETTLED:
            time.sleep(0.1)
        return self.room != before

    def look(self) -> bool:
        """See `ThisMachine`."""
        return False

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        """See `ThisMachine`."""
        placed = sorted(self._placed, key=lambda held: held.node)
        actors = [held.actor for held in placed[:width]]
        addresses = _addresses(actors) if actors else []
        if len(set(addresses)) < width:  # a node has gone, or two actors of one chose the same port
            time.sleep(_LOOK)
            return {}
        tell(f"{workers_text(width)} on {', '.join(addresses)}")
        tasks = as_each_task(Cluster(workers=tuple(addresses), source="launch"))
        self._used = dict(zip(tasks, actors, strict=True))
        own = {"TF_NUM_INTRAOP_THREADS": str(self.share.cpus)}
        if not self.share.gpus:  # otherwise Ray sets it for the actor
            own["CUDA_VISIBLE_DEVICES"] = "-1"
        return {name: {**given, **own} for name, given in layout.variables(tasks, os.environ).items()}

    def start(self, name: str, environment: Mapping[str, str], tell: Tell) -> RayProcess:
        """See `ThisMachine`."""
        return RayProcess(self._used[name], tell, self.command, dict(environment), os.getcwd(), self.call)

    def close(self) -> None:
        """See `ThisMachine`."""
        self._is_closed = True
        for held in self._held:
            _kill(held.actor)
        wait(self._holding, _SECONDS_TO_DIE)

    def _hold(self, held: _Held) -> None:
        """Ask for an actor, and when it is lost for the next one; in a thread for each worker."""
        failed_starts = 0
        while not self._is_closed:
            try:
                held.actor = self._actor.remote()
                if self._is_closed:  # since the last look; otherwise `close` sees this actor
                    _kill(held.actor)
                held.node = _answer(held.actor.address).rpartition(":")[0]
                failed_starts, self.problem = 0, ""
                self._has_changed()
                _answer(held.actor.stay)
            except Exception as error:  # of Ray, whose cluster may be gone
                if held.node:
                    held.node = ""
                    self._has_changed()
                    continue
                failed_starts += 1
                if failed_starts == _MOST_FAILED_STARTS:
                    self.problem = f"Ray cannot start the actor of a worker: {str(error).strip()}"
                    self.events.put(ROOM)
                time.sleep(_LOOK)

    def _has_changed(self) -> None:
        self._changed = time.monotonic()
        self.events.put(ROOM)


def _addresses(actors: Sequence[Any]) -> list[str]:
    """Return an address of each, with a free port; none where one is lost. One that does not answer is killed."""
    import ray

    calls = {actor.address.remote(): actor for actor in actors}
    _, silent = ray.wait(list(calls), num_returns=len(calls), timeout=_ANSWERS)
    for call in silent:
        _kill(calls[call])
    try:
        return ray.get(list(calls))
    except ray.exceptions.RayActorError:
        return []


def _answer(method: Any, *arguments: Any) -> Any:
    """Return what a method of an actor returns; asks again where its node does not answer for a moment."""
    import ray

    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.ActorUnavailableError:
            time.sleep(_LOOK)


def _kill(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # it, or its cluster, may be gone
        ray.kill(actor)
