"""The engine of a job whose tasks all run on this machine."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirrorkit.launch import layout
from mirrorkit.launch.task import Task


@dataclass
class ThisMachine:
    """Starts tasks as processes of this machine; see `job.Engine`.

    Args:
        command: of each task.
        events: those of the job.
        ps: number of parameter servers.
        chief: whether there is a chief that trains.
        devices_per_worker: see `layout.environments`.
    """

    command: Sequence[str]
    events: queue.SimpleQueue
    ps: int
    chief: bool
    devices_per_worker: str | None

    def environments(self, width: int) -> dict[str, dict[str, str]]:
        """See `job.Engine`."""
        tasks = layout.clusters(width, ps=self.ps, chief=self.chief)
        return layout.environments(tasks, devices_per_worker=self.devices_per_worker)

    def start(self, name: str, environment: Mapping[str, str]) -> Task:
        """See `job.Engine`."""
        return Task(name, self.command, environment, self.events)
