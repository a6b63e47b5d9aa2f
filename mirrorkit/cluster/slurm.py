"""Slurm: the tasks of one `srun` step are the workers, in the order of their ranks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from mirrorkit.cluster.cluster import Cluster
from mirrorkit.cluster.variables import number
from mirrorkit.errors import ClusterError

# Two jobs on one node need different ports. From 32768 on Linux assigns them to outgoing connections.
_FIRST_PORT, _SLOTS, _PORTS_PER_SLOT = 12000, 1000, 16
_MOST = 2**20  # hosts of one range


def read(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a Slurm step with several tasks; None elsewhere, also in a batch script outside of `srun`.

    Task `rank` listens at port base + rank. The base is $MIRRORKIT_PORT, or computed from the ids of job and step.
    Source: https://slurm.schedmd.com/srun.html, "Output environment variables".
    """
    if number(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        raise ClusterError(
            "These processes were started by mpirun, which does not say on which hosts the others are. Start them "
            "with srun, or set TF_CONFIG."
        )
    if number(environ, "SLURM_STEP_NUM_TASKS", 1) < 2:
        return None
    needed = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_NODEID", "SLURM_JOB_ID")
    if missing := [name for name in needed if name not in environ]:
        raise ClusterError(f"This is a Slurm step, but without {', '.join(missing)}. Pass on all SLURM_* variables.")
    size, rank, node = (number(environ, f"SLURM_{name}") for name in ("STEP_NUM_TASKS", "PROCID", "NODEID"))
    nodes = expand_hosts(environ["SLURM_STEP_NODELIST"])
    counts = expand_counts(environ["SLURM_STEP_TASKS_PER_NODE"])
    hosts = [node for node, count in zip(nodes, counts, strict=False) for _ in range(count)]
    if len(nodes) != len(counts) or len(hosts) != size:
        raise ClusterError(
            f"Slurm's variables contradict each other: {size} tasks on "
            f"{environ['SLURM_STEP_NODELIST']}, {environ['SLURM_STEP_TASKS_PER_NODE']} on each. Set TF_CONFIG instead."
        )
    if rank >= size or node >= len(nodes) or hosts[rank] != nodes[node]:
        raise ClusterError(
            f"Slurm put task {rank} on node {node} of {environ['SLURM_STEP_NODELIST']}, not where block distribution "
            "puts it. Start the tasks with srun --distribution=block."
        )
    slot = 7 * number(environ, "SLURM_JOB_ID") + number(environ, "SLURM_STEP_ID", 0)
    base = number(environ, "MIRRORKIT_PORT", _FIRST_PORT + slot % _SLOTS * _PORTS_PER_SLOT)
    return Cluster(workers=tuple(f"{host}:{base + i}" for i, host in enumerate(hosts)), task_index=rank, source="Slurm")


def expand_hosts(expression: str) -> list[str]:
    """Expand a host-list expression: "gpu[01-03,07],login" has five hosts; leading zeros are kept."""
    hosts: list[str] = []
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", expression)
    if ",".join(parts) != expression:
        raise ClusterError(f"SLURM_STEP_NODELIST is not understood: {expression!r} is cut off. Set TF_CONFIG instead.")
    for part in parts:
        pieces = re.split(r"\[([^\]]*)\]", part)  # fixed text and brackets in turn
        choices = [_numbers(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        hosts += ["".join(names) for names in itertools.product(*choices)]
    return hosts


def _numbers(ranges: str) -> list[str]:
    numbers = []
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        if not re.fullmatch(r"\d{1,18}(-\d{1,18})?", item) or int(last or first) - int(first) > _MOST:
            raise ClusterError(
                f"SLURM_STEP_NODELIST is not understood: [{ranges}] should hold numbers, such as [01-03,07]. Set "
                "TF_CONFIG instead."
            )
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return numbers


def expand_counts(expression: str) -> list[int]:
    """Expand the number of tasks on each node: "2(x3),1" is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in expression.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None:
            raise ClusterError(
                f"SLURM_STEP_TASKS_PER_NODE={expression!r} is not understood; expected a list such as 2(x3),1."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
