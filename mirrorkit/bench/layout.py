"""Layouts: which replicas a benchmark runs on, and the processes that make them up."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mirrorkit.bench.remote import Member
from mirrorkit.errors import StrategyError

DEVICES = ("cpu", "gpu", "workers")

SHARED_NOTE = (
    "These replicas share the same cores: the table shows what replicas cost (overhead), not how they scale. "
    "Take GPUs or workers for a speed-up."
)


@dataclass(frozen=True)
class Layout:
    """Replicas on one machine.

    Attributes:
        kind: as in `mk.strategy.create`.
        device: "cpu" for virtual CPU devices, "gpu", or "workers" for processes of one CPU core each.
        replicas: how many.
    """

    kind: str
    device: str
    replicas: int

    def members(self, **arguments: Any) -> list[Member]:
        """Return the processes, whose objects are made with `arguments`, `kind` and `devices`."""
        arguments = {**arguments, "kind": self.kind, "devices": f"{self.device}:{self.replicas}"}
        if self.device != "workers":  # several processes are alive at a time: none may take a GPU's whole memory
            return [Member(arguments, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if self.device == "gpu" else {})]
        arguments["devices"] = "cpu:1"
        threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        if self.replicas == 1:
            return [Member({**arguments, "kind": "one_device"}, threads, core=0)]
        arguments["devices"] = None
        workers = [f"127.0.0.1:{port}" for port in _free_ports(self.replicas)]
        return [
            Member(arguments, {**threads, "TF_CONFIG": _tf_config(workers, i)}, core=i) for i in range(len(workers))
        ]


def _tf_config(workers: Sequence[str], index: int) -> str:
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}})


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def for_scaling(device: str, counts: Sequence[int]) -> dict[int, Layout]:
    """Return a layout for each number of replicas, 1 always among them.

    Raises:
        StrategyError: another device, or a number below 1.
    """
    check(device, counts)
    many = "multi_worker" if device == "workers" else "mirrored"
    return {n: Layout("one_device" if n == 1 else many, device, n) for n in sorted({1, *counts})}


def for_comparison(device: str, counts: Sequence[int]) -> list[Layout]:
    """Return every strategy that one machine can run: one device first, then each kind with so many replicas.

    Raises:
        StrategyError: another device, or a number below 1.
    """
    check(device, counts)
    several = [n for n in sorted(set(counts)) if n > 1]
    kinds = ("multi_worker",) if device == "workers" else ("mirrored", "central_storage")
    return [Layout("one_device", device, 1), *(Layout(kind, device, n) for kind in kinds for n in several)]


def check(device: str, counts: Sequence[int]) -> None:
    """Refuse devices and numbers of replicas that there cannot be."""
    if device not in DEVICES:
        raise StrategyError(f"device={device!r} was asked for; there are {', '.join(map(repr, DEVICES))}.")
    if not counts or min(counts) < 1:
        raise StrategyError(f"Replicas {list(counts)} were asked for; each number must be at least 1.")


@dataclass(frozen=True)
class Hardware:
    """How many CPU cores and GPUs there are; what replicas are chosen by where nobody says."""

    cores: int
    gpus: int

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Hardware:
        """Take the numbers from what `machine.about` returned."""
        return cls(cores=about["cores"], gpus=len(about["gpus"]))

    def device(self) -> str:
        """GPUs where there are any."""
        return "gpu" if self.gpus else "cpu"

    def counts(self, device: str) -> list[int]:
        """1, 2, 4, ... as far as the hardware goes; up to 4 virtual devices."""
        check(device, [1])
        most = {"cpu": 4, "gpu": self.gpus, "workers": self.cores}[device]
        return [n for n in (1, 2, 4, 8, 16, 32) if n <= most]

    def is_shared(self, device: str, replicas: int) -> bool:
        """Whether so many replicas run on the same hardware, so that they cannot be faster than one."""
        return replicas > {"cpu": 1, "gpu": self.gpus, "workers": self.cores}[device]
