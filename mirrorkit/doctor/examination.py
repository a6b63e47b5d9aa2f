"""All checks in their order, from those that need nothing to those that need TensorFlow and the other workers."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping

from mirrorkit.cluster import Cluster
from mirrorkit.doctor import network, probe, settings, storage, versions
from mirrorkit.doctor.finding import Finding, guarded

_QUICK = 10.0  # seconds for a check that asks this machine alone
_DISK = 20.0
_NAMES = 10.0  # for names to become known: that of a Kubernetes pod appears only with the pod
_AT_FAULT_FIRST = "Fix what failed above, then run the doctor again."


def findings(asked: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run all checks for the options of the command, and give each finding as it comes."""
    yield from guarded("versions", versions.packages, seconds=_QUICK)
    yield from guarded("Keras's settings", lambda: versions.keras_settings(environ), seconds=_QUICK)
    cluster: Cluster | None = None

    def detect() -> list[Finding]:
        nonlocal cluster
        cluster, told = settings.cluster(environ)
        return told

    told = guarded("cluster settings", detect, seconds=_QUICK)
    yield from told
    is_wrong = _has_failed(told)
    if cluster is not None and not is_wrong:
        for finding in _network(cluster, asked.start_timeout, environ):
            is_wrong = is_wrong or finding.status == "failure"
            yield finding
    yield from _storage(asked, environ)
    here = 1 if cluster is None else network.on_this_machine(cluster)

    def devices() -> list[Finding]:
        return probe.devices(asked.devices, asked.require, workers_here=here)

    told = guarded("devices", devices, seconds=2 * probe.SECONDS)
    yield from told
    if is_wrong or _has_failed([finding for finding in told if finding.name == "import"]):
        yield Finding("all-reduce", "warning", "not tried: the failures above come first", _AT_FAULT_FIRST)
        return
    yield from guarded(
        "all-reduce",
        lambda: probe.all_reduce(asked.devices, start_timeout=asked.start_timeout),
        seconds=2 * probe.SECONDS + asked.start_timeout,
    )


def _has_failed(found: list[Finding]) -> bool:
    return any(finding.status == "failure" for finding in found)


def _network(cluster: Cluster, seconds: float, environ: Mapping[str, str]) -> Iterator[Finding]:
    found = guarded("hosts", lambda: network.hosts(cluster, seconds=_NAMES), seconds=_NAMES + 2 * _QUICK)
    found += guarded("port", lambda: network.port(cluster), seconds=_QUICK)
    found += guarded("exposure", lambda: network.exposure(cluster, environ), seconds=_QUICK)
    yield from found
    # Parameter servers do not meet the others; TensorFlow's own start waits for them all. Nor does an evaluator.
    if _has_failed(found) or cluster.num_workers < 2 or cluster.ps or cluster.task not in cluster.addresses:
        return
    yield from guarded("workers", lambda: network.workers(cluster, seconds=seconds), seconds=seconds + 2 * _QUICK)


def _storage(asked: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from guarded("temporary files", _temporary, seconds=_QUICK)
    named = asked.data or environ.get("MIRRORKIT_DATA")
    if named:
        by = "--data" if asked.data else "MIRRORKIT_DATA"
        yield from guarded("data", lambda: storage.data(named, by), seconds=_DISK)
    if asked.checkpoints:
        yield from guarded("checkpoints", lambda: storage.checkpoints(asked.checkpoints), seconds=_DISK)


def _temporary() -> Iterator[Finding]:
    try:
        yield Finding("temporary files", "ok", tempfile.gettempdir())
    except OSError as error:
        yield Finding("temporary files", "failure", str(error), "Make room in /tmp, or export TMPDIR=<another folder>")
