"""A plugin of pytest: what each test came to, and how often it went through mirrorkit; written as JSON at the end.

A plugin that replaces something in another project calls `went_through` and `beside` (see by_functional_apply.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = "MIRRORKIT_FOREIGN_RESULTS"  # the environment variable that names the file

_tests: dict[str, dict[str, Any]] = {}
_now: dict[str, Any] = {}
_is_inside = False


def went_through() -> None:
    """Count what mirrorkit has computed in the place of the other project."""
    _now["calls"] += 1


def beside(reason: str) -> None:
    """Say why something was left to the other project: what this test proves is not about mirrorkit."""
    if reason not in _now["reasons"]:
        _now["reasons"].append(reason)


def is_inside() -> bool:
    """Return whether mirrorkit is computing, so that what it calls is the other project's own."""
    return _is_inside or not _now


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Mirrorkit is computing."""
    global _is_inside
    _is_inside = True
    try:
        yield
    finally:
        _is_inside = False


def pytest_runtest_setup(item: Any) -> None:
    """Start counting from zero again."""
    _now.clear()
    _now.update(outcome="passed", calls=0, reasons=[], message="")
    _tests[item.nodeid] = dict(_now)


def pytest_runtest_logreport(report: Any) -> None:
    """Keep what a test came to."""
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        _now.update(outcome="failed", message=getattr(crash, "message", str(report.longrepr))[:500])
    elif report.outcome == "skipped" and _now["outcome"] != "failed":
        _now.update(outcome="skipped", message=str(report.longrepr[-1]))
    _tests[report.nodeid] = dict(_now, reasons=list(_now["reasons"]))


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported is a failure."""
    if report.failed:
        _tests[report.nodeid] = {"outcome": "failed", "calls": 0, "reasons": [], "message": str(report.longrepr)[-500:]}


def pytest_sessionfinish() -> None:
    """Write."""
    Path(os.environ[RESULTS]).write_text(json.dumps(_tests))
