"""The tasks of a job on this machine: their addresses, and the environment variables of each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from glob import glob

from mirrorkit import processor
from mirrorkit.cluster import JOB_TOKEN, Cluster, free_ports, job_token
from mirrorkit.errors import ClusterError, JobError


def clusters(workers: int, *, ps: int = 0, chief: bool = False) -> dict[str, Cluster]:
    """Return for each task, by name, the cluster as it sees it, on ports of this machine that are free now.

    With parameter servers there is a chief too, which coordinates.
    """
    if workers < 1 or ps < 0:
        raise JobError(
            f"A job needs at least one worker, and the number of ps cannot be negative; found {workers} and {ps}."
        )
    counts = {"chief": int(chief or ps > 0), "worker": workers, "ps": ps}
    ports = iter(free_ports(sum(counts.values())))
    at = {job: tuple(f"127.0.0.1:{next(ports)}" for _ in range(count)) for job, count in counts.items()}
    (coordinator,) = at["chief"] or (None,)
    whole = Cluster(workers=at["worker"], ps=at["ps"], chief=coordinator, source="launch")
    tasks = [replace(whole, task_type=job, task_index=i) for job, count in counts.items() for i in range(count)]
    return {cluster.task: cluster for cluster in tasks}


def environments(
    tasks: Mapping[str, Cluster], *, devices_per_worker: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, dict[str, str]]:
    """Return the environment variables of each task: `environ`, TF_CONFIG, its part of the GPUs and of the cores.

    All have the same MIRRORKIT_JOB_TOKEN: that of `environ`, or a new one.
    As `devices_per_worker`, "cpu" (or "cpu:1") hides the GPUs; "gpu:2" gives each worker two of its own; None shares
    all GPUs out when there is at least one for each worker, and hides them otherwise.
    """
    workers = [name for name, cluster in tasks.items() if _computes(cluster)]
    gpus = _gpus(environ)
    each = _gpus_per_worker(devices_per_worker, len(workers), len(gpus))
    token = secrets.token_hex(32) if job_token(environ) is None else environ[JOB_TOKEN]
    found = {}
    for name, cluster in tasks.items():
        own = {**environ, "TF_CONFIG": cluster.to_tf_config(), "PYTHONUNBUFFERED": "1", JOB_TOKEN: token}
        own.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, processor.cores() // len(workers))))
        if gpus:
            place = workers.index(name) * each if name in workers else 0
            visible = gpus[place : place + each] if name in workers else []
            own["CUDA_VISIBLE_DEVICES"] = ",".join(visible) or "-1"
        found[name] = own
    return found


def _computes(cluster: Cluster) -> bool:
    return cluster.task_type == "worker" or (cluster.task_type == "chief" and not cluster.ps)


def _gpus_per_worker(asked: str | None, workers: int, found: int) -> int:
    if asked is None:
        return found // workers
    kind, _, count = asked.lower().partition(":")
    if kind == "cpu" and count in ("", "1"):
        return 0
    if kind != "gpu" or not (count.isdigit() and int(count)):
        raise JobError(
            f"devices per worker: {asked!r} is not understood. Write 'gpu:2' (two GPUs for each worker), or 'cpu': "
            "a worker without GPUs is one replica, since TensorFlow does not split the CPU there."
        )
    if int(count) * workers > found:
        raise ClusterError(
            f"{workers} workers with {count} GPU{'s' if count != '1' else ''} each need {int(count) * workers}, but "
            f"{found} were found. Take fewer, or rehearse with --devices-per-worker cpu."
        )
    return int(count)


def _gpus(environ: Mapping[str, str]) -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        return [name for name in names if name and name != "-1"]
    return [str(i) for i in range(len(glob("/dev/nvidia[0-9]*")))]
