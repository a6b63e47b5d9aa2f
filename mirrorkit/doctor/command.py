"""The command `python -m mirrorkit doctor`."""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from dataclasses import asdict
from typing import Any

from mirrorkit import stop_signals
from mirrorkit.doctor.finding import Finding
from mirrorkit.printing import shown

_SIGNS = {"ok": "ok  ", "warning": "warn", "failure": "FAIL"}
_INDENT = " " * 24


def add(commands: Any) -> None:
    """Add `doctor` to the subparsers of the command line."""
    parser = commands.add_parser(
        "doctor",
        help="find what goes wrong before the first step, and say how to cure it",
        description="Check versions, the cluster, the disks and the devices. In a cluster start it as the script: in "
        "every task. The exit code is 1 when a check fails; a warning leaves it 0.",
    )
    parser.add_argument("--data", metavar="FOLDER", help="where the data lies (default: $MIRRORKIT_DATA)")
    parser.add_argument("--checkpoints", metavar="FOLDER", help="where checkpoints are to be written, or s3://...")
    parser.add_argument("--require", metavar="KIND[:N]", help="fail unless there are such devices: gpu, or gpu:4")
    parser.add_argument(
        "--start-timeout", type=float, default=30.0, metavar="SECONDS", help="to wait for the other workers (30)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from mirrorkit.doctor.examination import findings

    found = []
    # An exit of Python, unlike a signal, also ends the child process.
    before = stop_signals.catch((signal.SIGTERM, signal.SIGINT), stop_signals.leave)
    try:
        for finding in findings(options):
            found.append(finding)
            if not options.json:
                print(shown(_in_lines(finding)), flush=True)
    finally:
        stop_signals.put_back(before)
    by_status = Counter(finding.status for finding in found)
    failures = by_status["failure"]
    if options.json:
        print(shown(json.dumps({"ok": not failures, "findings": [asdict(f) for f in found]})))
    else:
        print(f"{len(found)} checks: {failures} failed, {by_status['warning']} with a warning")
    return 1 if failures else 0


def _in_lines(finding: Finding) -> str:
    """Return a finding as the command prints it: a line, and below it the cure."""
    found = finding.found.replace("\n", f"\n{_INDENT}")
    cure = f"\n{_INDENT}cure: {finding.cure}" if finding.cure else ""
    return f"{_SIGNS[finding.status]}  {finding.name:<16}  {found}{cure}"
