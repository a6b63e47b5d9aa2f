"""Meet the other tasks before TensorFlow starts: it waits for a missing one forever, without a word.

The first task listens at its own address, where TensorFlow will listen later; the others connect to it. When all are
there, and were started with the same cluster, it lets them go. Whoever else connects is dropped, and the waiting goes
on; nothing stays open. The messages are in messages.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorkit.cluster import messages
from mirrorkit.cluster.cluster import Cluster, with_addresses
from mirrorkit.cluster.messages import Signature
from mirrorkit.cluster.network import door, host_and_port
from mirrorkit.cluster.variables import JOB_TOKEN, job_token
from mirrorkit.errors import ClusterError
from mirrorkit.printing import few
from mirrorkit.within import started

_log = logging.getLogger("mirrorkit")

_PATIENCE = 10.0  # seconds after which to say for whom this task is waiting
_SAME = "All tasks need the same list of addresses (TF_CONFIG)."
_RETRY = 0.2
_VERDICT = 1.0  # seconds more for the first task to say who is missing, which it knows best
_HELLO = 5.0  # seconds that who has connected has to say who it is
_STRANGERS = 64  # connections at the same time, beside those of the tasks, that have not said who they are


def wait_for_all(
    cluster: Cluster,
    *,
    timeout: float,
    must_agree: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
) -> None:
    """Wait until every chief and worker has called this, and check that all describe the same cluster.

    `must_agree` holds more values that must be the same in all tasks, by name, such as the version of TensorFlow. A
    ClusterError names the tasks that did not start, started twice, or were started with other values. Where
    $MIRRORKIT_JOB_TOKEN is set, only tasks that have the same are listened to.
    """
    tasks = [task for task in cluster.addresses if not task.startswith("ps ")]
    if len(tasks) < 2:
        return
    hello = {"task": cluster.task, "tasks": cluster.addresses, **must_agree}
    token = job_token(os.environ if environ is None else environ)
    if cluster.task == tasks[0]:
        _run(_Host(cluster, tasks[1:], hello, token).wait(timeout))
    else:
        _run(_join(cluster, tasks[0], hello, token, timeout))


def _run(meeting: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread: a notebook's own has an event loop already, and a program may keep one in its own."""
    cancel: list[Callable[[], object]] = []

    async def run() -> None:
        if task := asyncio.current_task():
            cancel.append(lambda: task.get_loop().call_soon_threadsafe(task.cancel))
        await meeting

    try:
        started(lambda: asyncio.run(run())).result()
    except (KeyboardInterrupt, SystemExit):  # in this thread, which waits
        for end in cancel:
            end()
        raise


async def _until_met(
    meeting: asyncio.Future[None], timeout: float, waiting: Callable[[], str], missing: Callable[[], str]
) -> None:
    """Wait until all have met; log after a while for whom this task waits.

    Raises:
        ClusterError: they have not met in time (`missing` says who is not there), or cannot.
    """
    loop = asyncio.get_running_loop()
    reminder = loop.call_later(_PATIENCE, lambda: _log.warning("%s. %s", waiting(), _SAME))
    try:
        await asyncio.wait_for(meeting, timeout)
    except asyncio.TimeoutError:
        raise ClusterError(missing()) from None
    finally:
        reminder.cancel()


@dataclass(eq=False)
class _Guest:
    """A connection to the first task."""

    writer: asyncio.StreamWriter
    signature: Signature
    task: str = ""  # its name, once it has shown itself to be a task of this job

    def tell(self, **values: Any) -> None:
        """Send it a message."""
        self.writer.write(self.signature.line("host", values))


@dataclass(eq=False)
class _Host:
    """The first task: waits for the others."""

    cluster: Cluster
    others: list[str]
    hello: dict[str, Any]
    token: bytes | None
    guests: list[_Guest] = field(default_factory=list)  # the oldest first
    dropped: str = ""  # what the first connection was that was dropped; others may come again and again

    async def wait(self, timeout: float) -> None:
        self._met = asyncio.get_running_loop().create_future()
        here = with_addresses(self.cluster.addresses, [self.cluster.task])
        limit = messages.longest(self.hello)
        server = await asyncio.start_server(self.let_in, sock=door(self.cluster), limit=limit)
        try:
            await _until_met(
                self._met,
                timeout,
                lambda: f"{here} has been waiting {_PATIENCE:.0f} s for {few(self._missing, 8)}",
                lambda: self._did_not_come(timeout),
            )
            self._tell_tasks(go=True)
        except ClusterError as error:
            self._tell_tasks(error=f"{self.cluster.task} says: {error}")
            raise
        finally:
            server.close()
            for guest in self.guests:
                if not guest.task:
                    self._forget(guest)
            # Tasks close first, so that no closed connection of ours keeps the port busy for a while.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=_VERDICT)

    @property
    def _missing(self) -> list[str]:
        present = {guest.task for guest in self.guests}
        return [task for task in self.others if task not in present]

    def _tell_tasks(self, **values: Any) -> None:
        for guest in self.guests:
            if guest.task:
                guest.tell(**values)

    async def let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet who has connected, and take it among those present once it has named its task."""
        guest = _Guest(writer, Signature(None, messages.new_nonce(), ""))
        self.guests.append(guest)
        silent = [one for one in self.guests if not one.task]
        if len(silent) > _STRANGERS + len(self.others):
            self._drop(silent[0], "came while too many others had not named a task")
        try:
            writer.write(messages.greeting(guest.signature.host))
            line = await asyncio.wait_for(reader.readuntil(), _HELLO)
            self._welcome(guest, line)
            if await reader.read(1):
                raise messages.NotOurs("went on after naming its task")
        except asyncio.TimeoutError:
            self._drop(guest, f"named no task within {_HELLO:g} s")
        except asyncio.LimitOverrunError:
            self._drop(guest, "sent a longer line than a task does")
        except messages.NotOurs as error:
            self._drop(guest, str(error) or "sent something else than a task of this version of mirrorkit does")
        except RecursionError:
            self._drop(guest, "sent too many lists within each other")
        except (EOFError, OSError):
            if not guest.task:  # a task may leave, and come back
                self._drop(guest, "left without naming a task")
        except asyncio.CancelledError:
            pass  # all is over: asyncio would print a traceback
        finally:
            self._forget(guest)

    def _welcome(self, guest: _Guest, line: bytes) -> None:
        """Take a guest among those present; all end where a task of this job was started wrongly.

        Raises:
            NotOurs: it is none of the others.
        """
        me = self.cluster.task
        message = messages.read(line)
        hello = message.values
        signature = Signature(self.token, guest.signature.host, messages.require_nonce(hello.get("nonce")))
        task = hello.get("task")
        if not signature.fits("guest", message):
            gave = "a wrong" if self.token else "an unexpected"
            if message.mac == messages.UNSIGNED:
                gave = "no"
            guest.tell(error=f"{me} says: this task gave {gave} job token. Give all tasks the same {JOB_TOKEN}.")
            raise messages.NotOurs(f"gave {gave} job token ({JOB_TOKEN})")
        if self._met.done():  # a moment ago
            return
        guest.signature = signature
        if task not in self.others:
            guest.tell(
                error=f"{me} says: there is no other task {messages.printable(task, length=50)!r} in its cluster."
            )
            raise messages.NotOurs("named a task that is not in this cluster")
        is_second, guest.task = task not in self._missing, task
        for name, mine in self.hello.items():
            if name != "task" and hello.get(name) != mine:
                theirs = messages.printable(repr(hello.get(name)))
                why = (
                    f"{task} was started with other {name} than {me}: {theirs} instead of "
                    f"{messages.printable(repr(mine))}. Start all tasks with the same."
                )
                self._met.set_exception(ClusterError(why))
                return
        if is_second:
            why = (
                f"Two processes say that they are {task}. Give each task its own index, and end what is left of an "
                "earlier run."
            )
            self._met.set_exception(ClusterError(why))
            return
        self._tell_tasks(**{"waiting for": few(self._missing, 8)})
        if not self._missing:
            self._met.set_result(None)

    def _drop(self, guest: _Guest, why: str) -> None:
        if not self.dropped and guest in self.guests:
            host = guest.writer.get_extra_info("peername")[0].removeprefix("::ffff:")  # before an IPv4 address
            self.dropped = f" {self.cluster.task} dropped a connection from {host}, which {why}."
            _log.warning(self.dropped.strip())
        self._forget(guest)

    def _forget(self, guest: _Guest) -> None:
        guest.writer.close()
        self.guests = [one for one in self.guests if one is not guest]

    def _did_not_come(self, timeout: float) -> str:
        named = with_addresses(self.cluster.addresses, self._missing)
        every = len(self.others) + 1
        return (
            f"{named} did not start within {timeout:g} s; {every - len(self._missing)} of {every} tasks are there "
            f"({self.cluster.source}).{self.dropped} Look at their output; they must run the same script and reach "
            f"{self.cluster.addresses[self.cluster.task]}. A longer start_timeout waits longer."
        )


async def _join(cluster: Cluster, first: str, hello: dict[str, Any], token: bytes | None, timeout: float) -> None:
    """Connect to the first task, and try again until it lets this one go."""
    address, limit = cluster.addresses[first], messages.longest(hello)
    silent = "does not answer"
    seen = silent

    async def visit() -> None:
        nonlocal seen
        while True:
            try:
                connecting = asyncio.open_connection(*host_and_port(address), limit=limit)
                reader, writer = await asyncio.wait_for(connecting, 2.0)
            except (asyncio.TimeoutError, OSError):
                await asyncio.sleep(_RETRY)
                continue
            if seen == silent:  # what an earlier visit was told says more
                seen = (
                    "answers, but not as a task that is starting (another program, another version of mirrorkit, or "
                    "the job already runs without this task)"
                )
            with contextlib.closing(writer):
                async for seen in _answers(reader, writer, hello, token):
                    if seen == "go":
                        return
            await asyncio.sleep(1.0)

    named = with_addresses(cluster.addresses, [first])
    await _until_met(
        asyncio.ensure_future(visit()),
        timeout + _VERDICT,
        lambda: f"{cluster.task} has been waiting {_PATIENCE:.0f} s for {named}, which {seen}",
        lambda: (
            f"{cluster.task} waited {timeout:g} s for {named}, which {seen} ({cluster.source}). Look at its output. "
            "Start all tasks together, also after a failure; a longer start_timeout waits longer."
        ),
    )


async def _answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: dict[str, Any], token: bytes | None
) -> AsyncIterator[str]:
    """Send this task's name, and yield what the first task does until it leaves: "go", or why it does not start."""
    nonce = messages.new_nonce()
    # it left, or is not one of the tasks
    with contextlib.suppress(
        EOFError, OSError, asyncio.LimitOverrunError, asyncio.TimeoutError, messages.NotOurs, RecursionError
    ):
        greeting = await asyncio.wait_for(reader.readuntil(), _HELLO)
        signature = Signature(token, messages.nonce_of_greeting(greeting), nonce)
        writer.write(signature.line("guest", {**hello, "nonce": nonce}))
        while True:
            message = messages.read(await reader.readuntil())
            if not signature.fits("host", message):
                if token is not None:
                    yield f"gave no job token, or another one than this task has ({JOB_TOKEN}: give all tasks the same)"
                return
            if "error" in message.values:
                raise ClusterError(messages.printable(message.values["error"], length=messages.longest(hello)))
            if "go" in message.values:
                yield "go"
            yield f"is waiting for {messages.printable(message.values.get('waiting for'))}"
