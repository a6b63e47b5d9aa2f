"""Layouts: which replicas a benchmark runs on, and the processes that make them up."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.processes import Member
from mirrorkit.arguments import is_whole
from mirrorkit.errors import StrategyError
from mirrorkit.launch.layout import clusters, environments

DEVICES = ("cpu", "gpu", "workers")

SHARED_NOTE = (
    "These replicas share the same cores: the table shows what replicas cost (overhead), not how they scale. "
    "Take GPUs or workers for a speed-up."
)


@dataclass(frozen=True)
class Topology:
    """Replicas on one machine."""

    kind: str  # as in `mk.strategy.create`; or "apart": processes that train independently, for the limit of the cores
    device: str  # "cpu" for virtual CPU devices, "gpu", or "workers" for processes of one CPU core each
    replicas: int
    logical: bool = False  # whether the GPUs are logical ones, parts of the first

    @classmethod
    def of(cls, device: str, replicas: int) -> Topology:
        """Mirrored replicas, or one."""
        many = "multi_worker" if device == "workers" else "mirrored"
        return cls("one_device" if replicas == 1 else many, device, replicas)

    def members(self, **arguments: Any) -> list[Member]:
        """Return the processes; their objects are made with `arguments`, `kind` and `devices`, and with `split_gpu`
        where the GPUs are logical ones.
        """
        if self.kind == "apart":
            return [alone(core, **arguments) for core in range(self.replicas)]
        arguments = {**arguments, "kind": self.kind, "devices": f"{self.device}:{self.replicas}"}
        if self.logical:
            arguments["split_gpu"] = self.replicas
        if self.device != "workers":  # several processes are alive at a time: none may take a GPU's whole memory
            memory = {"gpu": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "cpu": {"CUDA_VISIBLE_DEVICES": ""}}
            return [Member(arguments, memory[self.device])]
        one_core = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        if self.replicas == 1:
            return [Member({**arguments, "devices": "cpu:1"}, one_core, core=0)]
        arguments["devices"] = None
        serving = self.kind == "parameter_server"
        if serving:  # with one thread between operations, a worker waits forever for its parameter servers
            one_core["TF_NUM_INTEROP_THREADS"] = "4"
        tasks = clusters(self.replicas, ps=1 if serving else 0)
        found = []
        for name, environment in environments(tasks, environ=os.environ, devices_per_worker="cpu").items():
            answers = not serving or tasks[name].task_type == "chief"
            if tasks[name].task_type == "worker":
                found.append(Member(arguments, {**environment, **one_core}, tasks[name].task_index, answers))
            else:
                found.append(Member(arguments, environment, None, answers))
        return sorted(found, key=lambda member: not member.answers)


def alone(core: int, **arguments: Any) -> Member:
    """Return a process that trains by itself on one core."""
    (member,) = Topology.of("workers", 1).members(**arguments)
    return replace(member, core=core)


def for_comparison(device: str, counts: Sequence[int], *, cores: int) -> list[Topology]:
    """Return every strategy that one machine can run: one device first, then each kind for each number of replicas.

    "cpu" adds workers on cores of their own, as far as this machine has `cores`; "gpu" adds one CPU.
    """
    check(device, counts)
    several = [n for n in sorted(set(counts)) if n > 1]
    found = [Topology("one_device", device, 1)]
    if device == "gpu":
        found.append(Topology("one_device", "cpu", 1))
    if device != "workers":
        found += [Topology(kind, device, n) for kind in ("mirrored", "central_storage") for n in several]
    if device != "gpu":
        numbers = [n for n in several if n <= cores] if device == "cpu" else several
        found += [Topology(kind, "workers", n) for kind in ("multi_worker", "parameter_server") for n in numbers]
    return found


def check(device: str, counts: Sequence[int]) -> None:
    """Refuse unknown devices and invalid numbers of replicas."""
    if device not in DEVICES:
        raise StrategyError(f"devices={device!r} was asked for; choose from {', '.join(map(repr, DEVICES))}.")
    if not counts or not all(map(is_whole, counts)):
        raise StrategyError(f"Replicas {list(counts)} were asked for; each must be a whole number of at least 1.")


@dataclass(frozen=True)
class Hardware:
    """How many CPU cores and GPUs there are, and the defaults that follow from them."""

    cores: int
    gpus: int

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Hardware:
        """Take the numbers from what `machine.about` returned."""
        return cls(cores=about["cores"], gpus=len(about["gpus"]))

    def device(self, asked: str | None = None) -> str:
        """Return what was asked for, or GPUs where there are any; refuse GPUs where there are none."""
        if asked == "gpu" and not self.gpus:
            raise StrategyError(
                "devices='gpu' was asked for, but TensorFlow finds no GPU. Take 'cpu' or 'workers'; "
                "`python -m mirrorkit devices --require gpu` says more."
            )
        return asked or ("gpu" if self.gpus else "cpu")

    def counts(self, device: str) -> list[int]:
        """1, 2, 4, ... as far as the hardware goes; up to 4 virtual devices."""
        check(device, [1])
        most = {"cpu": 4, "gpu": self.gpus, "workers": self.cores}[device]
        return [n for n in (1, 2, 4, 8, 16, 32) if n <= most]

    def is_shared(self, device: str, replicas: int) -> bool:
        """Whether that many replicas share hardware, so that they cannot be faster than one."""
        return replicas > {"cpu": 1, "gpu": self.gpus, "workers": self.cores}[device]
