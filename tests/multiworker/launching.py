"""Real processes on this machine, started by the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mirrorkit as mk

ROOT = Path(mk.__file__).parents[1]


def environment(**changes: str) -> dict[str, str]:
    """This process's, with this mirrorkit on the path and without a cluster."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS")}
    return {**kept, "PYTHONPATH": path, **changes}


def launched(
    *arguments: Any, folder: Path, workers: int = 2, timeout: float = 280, check: bool = True, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m mirrorkit launch --workers N ARGUMENTS` in `folder`; on a failure show what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "mirrorkit", "launch", "--workers", str(workers), *map(str, arguments)],
        cwd=folder,
        env=environment(TMPDIR=str(folder), **changes),
        timeout=timeout,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0 or not check, f"exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-5000:]}"
    return done
