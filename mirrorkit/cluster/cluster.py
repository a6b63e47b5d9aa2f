"""Cluster: the tasks that train together, their addresses, and which of them this process is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mirrorkit.errors import ClusterError

TASK_TYPES = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True)
class Cluster:
    """The tasks that train together. An invalid cluster raises a `ClusterError` when it is created.

    ```python
    cluster = mk.cluster.Cluster(workers=("gpu01:2222", "gpu02:2222"), task_index=1)
    print(cluster)  # worker 1 of 2 workers (given), gpu02:2222
    print(cluster.is_chief, cluster.addresses["worker 0"])  # False gpu01:2222
    ```

    Attributes:
        workers: address "host:port" of each worker, in the order of their indices.
        ps: address of each parameter server.
        chief: address of the chief, if it is a separate task. It then trains as the first of the workers; with
            parameter servers it is the coordinator instead. Without one, worker 0 is the chief.
        task_type: the type of this process: "chief", "worker", "ps", or "evaluator" (which does not take part in
            training).
        task_index: the index of this process among the tasks of its type, from 0.
        source: where this was read from, for messages: "TF_CONFIG", "Slurm", ...
    """

    workers: tuple[str, ...]
    ps: tuple[str, ...] = ()
    chief: str | None = None
    task_type: str = "worker"
    task_index: int = 0
    source: str = "given"

    def __post_init__(self) -> None:
        """Check everything that can be checked without a network."""
        object.__setattr__(self, "workers", self._addresses("worker", self.workers))
        object.__setattr__(self, "ps", self._addresses("ps", self.ps))
        if self.chief is not None:
            self._addresses("chief", (self.chief,))
        self._check_tasks()
        self._check_duplicates()

    @property
    def addresses(self) -> dict[str, str]:
        """Each task's address by its name ("chief", "worker 0", "ps 1"), the chief first."""
        return {task_name(job, i): address for job, of in jobs(self).items() for i, address in enumerate(of)}

    @property
    def task(self) -> str:
        """Name of this task: "chief", "worker 0", ..."""
        return task_name(self.task_type, self.task_index)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes: the chief, or worker 0 where there is no chief."""
        return self.task == ("worker 0" if self.chief is None else "chief")

    @property
    def num_workers(self) -> int:
        """How many processes train together: the workers, and the chief unless it coordinates parameter servers."""
        return len(computing(self))

    def to_tf_config(self) -> str:
        """Return this cluster as a value of TF_CONFIG (JSON)."""
        return json.dumps({"cluster": jobs(self), "task": {"type": self.task_type, "index": self.task_index}})

    def __str__(self) -> str:
        """Say in one line which task this is, of how many, and where that was read from."""
        count = f"{self.num_workers} worker{'s' if self.num_workers != 1 else ''}"
        servers = f" and {len(self.ps)} ps" if self.ps else ""
        address = self.addresses.get(self.task)
        return f"{self.task} of {count}{servers} ({self.source}){f', {address}' if address else ''}"

    def _addresses(self, job: str, given: object) -> tuple[str, ...]:
        if not isinstance(given, (list, tuple)):
            raise ClusterError(
                f"{self.source}: the addresses of {job!r} must be a list such as ['host:2222'], found {given!r}."
            )
        for index, address in enumerate(given):
            _check_address(address, f"{self.source}: {task_name(job, index)}")
        return tuple(given)

    def _check_tasks(self) -> None:
        if not self.workers and self.chief is None:
            raise ClusterError(f"{self.source}: there is no worker and no chief. Name at least one worker's address.")
        if self.task_type not in TASK_TYPES:
            raise ClusterError(
                f"{self.source}: the task type {self.task_type!r} is unknown. The types are "
                f"{', '.join(map(repr, TASK_TYPES))}; an old 'master' is now called 'chief'."
            )
        if type(self.task_index) is not int:  # nor a bool
            raise ClusterError(f"{self.source}: the task index must be a whole number, found {self.task_index!r}.")
        # evaluators need no address
        count = self.task_index + 1 if self.task_type == "evaluator" else len(jobs(self).get(self.task_type, ()))
        if not 0 <= self.task_index < count:
            raise ClusterError(
                f"{self.source}: this process is {self.task_type} {self.task_index}, but there "
                f"{'is' if count == 1 else 'are'} {count} of type {self.task_type!r}. Indices start at 0; give this "
                "process another index, or add its address to the cluster."
            )

    def _check_duplicates(self) -> None:
        owners: dict[str, str] = {}
        for task, address in self.addresses.items():
            owner = owners.setdefault(address, task)
            if owner != task:
                advice = "Every task needs its own; on one host give each a different port."
                if owner == "chief":
                    advice = "A chief is a separate task beside the workers: take its address out of the workers."
                raise ClusterError(f"{self.source}: {owner} and {task} have the same address {address}. {advice}")


def jobs(cluster: Cluster) -> dict[str, list[str]]:
    """Return the addresses by the types of the tasks, the chief's first; types of which there is none are left out."""
    every = {"chief": [cluster.chief] if cluster.chief else [], "worker": [*cluster.workers], "ps": [*cluster.ps]}
    return {job: addresses for job, addresses in every.items() if addresses}


def computing(cluster: Cluster) -> list[str]:
    """Return the names of the tasks that train: the workers, and the chief unless it coordinates parameter servers."""
    coordinator = "chief" if cluster.ps else ""
    return [task for task in cluster.addresses if task != coordinator and not task.startswith("ps ")]


def as_each_task(cluster: Cluster) -> dict[str, Cluster]:
    """Return for each task, by name, the cluster as it sees it."""
    return {
        task_name(job, index): replace(cluster, task_type=job, task_index=index)
        for job, addresses in jobs(cluster).items()
        for index in range(len(addresses))
    }


def task_name(task_type: str, index: int) -> str:
    """Return "chief", "worker 0", "ps 1": the name of a task in messages and log lines.

    ```python
    print(mk.cluster.task_name("worker", 2))  # worker 2
    ```
    """
    return "chief" if task_type == "chief" and index == 0 else f"{task_type} {index}"


def with_addresses(addresses: Mapping[str, str], tasks: Iterable[str]) -> str:
    """Return some of the tasks as messages name them: "worker 0 (gpu01:2222), ps 1 (gpu02:2222)"."""
    return ", ".join(f"{task} ({addresses[task]})" for task in tasks)


def _check_address(address: object, who: str) -> None:
    match = (
        re.fullmatch(r"(?:\[[^\]\s]+\]|[^:/\s\x00-\x1f]+):([0-9]{1,9})", address) if isinstance(address, str) else None
    )
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise ClusterError(
            f"{who} has the address {address!r}. Write host:port, such as 'gpu01:2222'; no 'grpc://', and a port "
            "between 1 and 65535, which the other tasks have to know."
        )
