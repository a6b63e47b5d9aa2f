"""All checks in their order, from those that need nothing to those that need TensorFlow."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from mirrorkit.doctor import network, probe, storage, versions
from mirrorkit.doctor.finding import Finding, guarded


def findings(asked: argparse.Namespace) -> Iterator[Finding]:
    """Run all checks for the options of the command, and give each finding as it comes."""
    yield from guarded("versions", versions.packages)
    cluster, described = network.described(os.environ)
    yield from described
    if cluster is not None:
        yield from guarded("network", lambda: network.findings(cluster, start_timeout=asked.start_timeout))
    if data := asked.data or os.environ.get("MIRRORKIT_DATA"):
        yield from guarded("data", lambda: storage.data(data), seconds=storage.SECONDS)
    if asked.checkpoints:
        yield from guarded("checkpoints", lambda: storage.checkpoints(asked.checkpoints), seconds=storage.SECONDS)
    here = 1 if cluster is None else network.on_this_machine(cluster)
    yield from probe.devices(asked.require, workers_here=here)
