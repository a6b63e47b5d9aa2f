"""A contender in a process (or several) of its own, which lives through the whole benchmark and trains on command."""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from contenders import CONTENDERS
from contenders.work import Work


class Failed(Exception):
    """A contender cannot run here, or broke; the message is the end of its own error."""


class Process:
    """The process or processes of one contender.

    Args:
        name: of CONTENDERS; "name@2" sets the number of replicas, or of processes where it has one replica in each.
        work: what to train; with `replicas` processes, each has a part of the work.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, name: str, work: Work, *, timeout: float = 900.0) -> None:
        self.name = name
        self.timeout = timeout
        short, _, number = name.partition("@")
        module, arguments, many = CONTENDERS[short]
        replicas = int(number or (2 if many else work.replicas))
        work = dataclasses.replace(work, replicas=replicas, ports=_free_ports(replicas))
        spawn = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        for i in range(replicas if many else 1):
            here, there = spawn.Pipe()
            core = i if many else None
            target = (there, module, arguments, dataclasses.replace(work, process=i), core)
            process = spawn.Process(target=_serve, args=target, daemon=True)
            process.start()
            there.close()
            self._members.append((process, here))

    def ask(self, *request: Any) -> Any:
        """Send a request to all processes and return the first one's answer; `Failed` when one breaks."""
        for _, connection in self._members:
            connection.send(request)
        return self.answers()[0]

    def answers(self) -> list[Any]:
        answers = []
        deadline = time.monotonic() + self.timeout
        for process, connection in self._members:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise Failed(f"no answer within {self.timeout:g} s")
            try:
                failed, answer = connection.recv()
            except EOFError:
                process.join(5)
                raise Failed(f"the process died with exit code {process.exitcode}") from None
            if failed:
                raise Failed(answer)
            answers.append(answer)
        return answers

    def end(self) -> None:
        for process, connection in self._members:
            connection.close()
            process.kill()
            process.join()


def _serve(connection: Connection, module: str, arguments: dict[str, Any], work: Work, core: int | None) -> None:
    """Make the contender, answer "ready", and train on request until the other side is gone."""
    if core is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})
        os.environ.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile("w+") as quiet:
        os.dup2(quiet.fileno(), 2)  # TensorFlow logs to file descriptor 2
        try:
            contender = importlib.import_module(f"contenders.{module}").Contender(work, **arguments)
            connection.send((False, "ready"))
            while True:
                epochs, steps, build = connection.recv()
                start = time.perf_counter()
                if build:
                    contender.build()
                connection.send((False, (time.perf_counter() - start, *contender.train(epochs, steps))))
        except (EOFError, BrokenPipeError):
            return
        except BaseException as error:
            traceback.print_exc()
            message = str(error).strip().splitlines() or [""]
            connection.send((True, f"{type(error).__name__}: {message[0][:300]}"))
            sys.exit(1)


def _free_ports(count: int) -> tuple[int, ...]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = tuple(one.getsockname()[1] for one in sockets)
    for one in sockets:
        one.close()
    return ports
