"""The processes of a benchmark: each contender has its own, with its own devices and threads, compiled once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from harness.remote import Remote


@dataclass(frozen=True)
class Member:
    """One process of a `Group`."""

    arguments: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of its object; they are pickled
    environment: Mapping[str, str] = field(default_factory=dict)  # variables on top of this process's own
    core: int | None = None  # the only core that it may use, by its position among those of this process
    answers: bool = True  # or it only serves the others, as a parameter server does


class Group(contextlib.AbstractContextManager["Group"]):
    """The same object in one process, or in each of several that work together; the processes start at once.

    `target` and `timeout` are those of `Remote`.
    """

    def __init__(self, target: str, *members: Member, timeout: float = 900.0) -> None:
        self._stack = contextlib.ExitStack()
        self._answering: list[Remote] = []
        self._all: list[Remote] = []
        for member in members or (Member(),):
            with _on_core(member.core):
                remote = Remote(target, member.arguments, environment=member.environment, timeout=timeout)
            self._all.append(self._stack.enter_context(remote))
            if member.answers:
                self._answering.append(remote)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method in every process at the same time, wait for all, and return what the first one returned.

        A MirrorkitError says that it failed in one of them, or that the object could not be made.
        """
        failed = None
        with ThreadPoolExecutor(len(self._answering)) as pool:
            answers = [pool.submit(remote.call, method, **arguments) for remote in self._answering]
            try:
                done, _ = wait(answers, return_when=FIRST_EXCEPTION)
                failed = next((answer for answer in done if answer.exception()), None)
            finally:  # after one has failed, or at Ctrl-C, the others may wait forever
                if not all(answer.done() for answer in answers):
                    self._end()
        return (failed or answers[0]).result()

    def _end(self) -> None:
        for remote in self._all:
            remote.end()

    def __exit__(self, *_: object) -> None:
        """End the processes and whatever they started."""
        self._end()
        self._stack.close()


@contextlib.contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """Let this thread use one core for the block: a process that it starts keeps to that."""
    if core is None:
        yield
        return
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(every)[core % len(every)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)
