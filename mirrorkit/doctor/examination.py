"""All checks in their order, from those that need nothing to those that need TensorFlow and the other workers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirrorkit.cluster import Cluster
from mirrorkit.doctor import network, probe, settings, storage, versions
from mirrorkit.doctor.finding import Finding, guarded

_QUICK = 10.0  # seconds for a check that asks this machine alone
_DISK = 20.0
_NAMES = 10.0  # for names to become known: that of a Kubernetes pod appears only with the pod
_AT_FAULT_FIRST = "Fix what failed above, then run the doctor again."


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    data: str | None = None
    checkpoints: str | None = None
    devices: str | None = None
    require: str | None = None
    start_timeout: float = 30.0


def findings(asked: Asked, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run all checks, and give each finding as it comes."""
    yield from guarded("versions", versions.packages, seconds=_QUICK)
    yield from guarded("Keras's settings", lambda: versions.keras_settings(environ), seconds=_QUICK)
    cluster: Cluster | None = None

    def detect() -> list[Finding]:
        nonlocal cluster
        cluster, told = settings.cluster(environ)
        return told

    told = guarded("cluster settings", detect, seconds=_QUICK)
    yield from told
    is_wrong = any(finding.status == "failure" for finding in told)
    if cluster is not None and not is_wrong:
        for finding in _network(cluster, asked, environ):
            is_wrong = is_wrong or finding.status == "failure"
            yield finding
    yield from _storage(asked, environ)
    here = 1 if cluster is None else network.on_this_machine(cluster)
    for finding in guarded(
        "devices",
        lambda: probe.devices(asked.devices, asked.require, workers_here=here),
        seconds=2 * probe.SECONDS,
    ):
        is_wrong = is_wrong or (finding.name == "import" and finding.status == "failure")
        yield finding
    if is_wrong:
        yield Finding("all-reduce", "warning", "not tried: the failures above come first", _AT_FAULT_FIRST)
        return
    yield from guarded(
        "all-reduce",
        lambda: probe.all_reduce(asked.devices, start_timeout=asked.start_timeout),
        seconds=2 * probe.SECONDS + asked.start_timeout,
    )


def _network(cluster: Cluster, asked: Asked, environ: Mapping[str, str]) -> Iterator[Finding]:
    found = guarded("hosts", lambda: network.hosts(cluster, seconds=_NAMES), seconds=_NAMES + 2 * _QUICK)
    found += guarded("port", lambda: network.port(cluster), seconds=_QUICK)
    found += guarded("exposure", lambda: network.exposure(cluster, environ), seconds=_QUICK)
    yield from found
    # Parameter servers do not meet the others; TensorFlow's own start waits for them all.
    if any(finding.status == "failure" for finding in found) or cluster.num_workers < 2 or cluster.ps:
        return
    if cluster.task not in cluster.addresses:  # an evaluator
        return
    seconds = asked.start_timeout
    yield from guarded("workers", lambda: network.workers(cluster, seconds=seconds), seconds=seconds + 2 * _QUICK)


def _storage(asked: Asked, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from guarded("temporary files", _temporary, seconds=_QUICK)
    named = asked.data or environ.get("MIRRORKIT_DATA")
    if named:
        by = "--data" if asked.data else "MIRRORKIT_DATA"
        yield from guarded("data", lambda: storage.data(named, by), seconds=_DISK)
    if asked.checkpoints:
        folder = Path(asked.checkpoints)
        yield from guarded("checkpoints", lambda: storage.checkpoints(folder), seconds=_DISK)


def _temporary() -> Iterator[Finding]:
    try:
        yield Finding("temporary files", "ok", tempfile.gettempdir())
    except OSError as error:
        yield Finding("temporary files", "failure", str(error), "Make room in /tmp, or export TMPDIR=<another folder>")
