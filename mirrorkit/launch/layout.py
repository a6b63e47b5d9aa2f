"""The tasks of a job: their addresses, and the environment variables of each."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from glob import glob

from mirrorkit import processor
from mirrorkit.cluster import JOB_TOKEN, Cluster, as_each_task, computing, free_ports, job_token
from mirrorkit.errors import ClusterError, JobError


def clusters(workers: int, *, ps: int = 0, chief: bool = False, source: str = "launch") -> dict[str, Cluster]:
    """Return for each task, by name, the cluster as it sees it, on ports of this machine that are free now.

    With parameter servers there is a chief too, which coordinates.
    """
    has_chief = chief or ps > 0
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers + ps + has_chief))
    coordinator = addresses[-1] if has_chief else None
    servers = addresses[workers : workers + ps]
    return as_each_task(Cluster(workers=addresses[:workers], ps=servers, chief=coordinator, source=source))


def variables(tasks: Mapping[str, Cluster], environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the environment variables that say to each task which one it is, and the token of the job.

    The token is that of `environ`, or a new one.
    """
    token = secrets.token_hex(32) if job_token(environ) is None else environ[JOB_TOKEN]
    return {
        name: {"TF_CONFIG": cluster.to_tf_config(), "PYTHONUNBUFFERED": "1", JOB_TOKEN: token}
        for name, cluster in tasks.items()
    }


def environments(
    tasks: Mapping[str, Cluster], *, environ: Mapping[str, str], devices_per_worker: str | None = None
) -> dict[str, dict[str, str]]:
    """Return the environment variables of each task: `environ`, its `variables`, its part of the GPUs and of the cores.

    As `devices_per_worker`, "cpu" (or "cpu:1") hides the GPUs; "gpu:2" gives each worker two of its own; None shares
    all GPUs out when there is at least one for each worker, and hides them otherwise.
    """
    workers = computing(next(iter(tasks.values())))
    gpus = _gpus(environ)
    each = _gpus_per_worker(devices_per_worker, len(workers), len(gpus))
    visible = {name: gpus[index * each : (index + 1) * each] for index, name in enumerate(workers)}
    threads = str(max(1, processor.cores() // len(workers)))
    found = {}
    for name, own in variables(tasks, environ).items():
        found[name] = {"TF_NUM_INTRAOP_THREADS": threads, **environ, **own}
        if gpus:
            found[name]["CUDA_VISIBLE_DEVICES"] = ",".join(visible.get(name, ())) or "-1"
    return found


def _gpus_per_worker(asked: str | None, workers: int, found: int) -> int:
    if asked is None:
        return found // workers
    match = re.fullmatch(r"cpu(:1)?|gpu:(?P<gpus>[1-9]\d*)", asked.lower())
    if match is None:
        raise JobError(
            f"devices per worker: {asked!r} is not understood. Write 'gpu:2' (two GPUs for each worker), or 'cpu': "
            "a worker without GPUs is one replica, since TensorFlow does not split the CPU there."
        )
    count = int(match["gpus"] or 0)
    if count * workers > found:
        raise ClusterError(
            f"{workers} workers with {count} GPU{'s' if count != 1 else ''} each need {count * workers}, but {found} "
            "were found. Take fewer, or rehearse with --devices-per-worker cpu."
        )
    return count


def _gpus(environ: Mapping[str, str]) -> list[str]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(len(glob("/dev/nvidia[0-9]*")))]
    return [name for name in re.findall(r"[^,\s]+", visible) if name != "-1"]
