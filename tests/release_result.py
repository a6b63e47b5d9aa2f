"""The result of the last run of tests/release.sh, which writes it: tests/release-result.json.

Run, as the script does: python tests/release_result.py COMMIT PARTS FILE
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mirrorkit import processor

sys.path.append(str(Path(__file__).parent / "package"))
from supported_range import outcomes

FILE = "tests/release-result.json"
COMMITS = 300  # so many may have been made since
CURE = f"Run `bash tests/release.sh` on a commit and commit {FILE}, which it writes."


class CannotTellError(Exception):
    """There is no result yet, or no history to judge its age by."""


def counts(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped, of pytest's XML; empty where a part wrote none."""
    if not report.is_file():
        return {}
    passed, failed, skipped = outcomes(report)
    return {"passed": passed, "failed": len(failed), "skipped": sum(skipped.values())}


def read_parts(parts: Path) -> list[dict[str, Any]]:
    """The lines of a file of parts, and the counts of `NAME.xml` beside it."""
    found = []
    for line in parts.read_text().splitlines():
        name, exit_code, seconds = line.split("\t")
        part = {"name": name, "exit_code": int(exit_code), "seconds": int(seconds)}
        found.append(part | counts(parts.with_name(f"{name}.xml")))
    return found


def result(commit: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "passed": not any(part["exit_code"] for part in parts),
        "machine": {
            "processor": processor.model(),
            "cores": processor.cores(),
            "memory_gib": round(memory / 2**30),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("tensorflow", "keras")}},
        "parts": parts,
    }


def complaint(root: Path) -> str:
    """What is wrong with the result in a repository; empty where it is a pass, and not too old."""
    file = root / FILE
    found = json.loads(file.read_text()) if file.is_file() else None
    if found and not found["passed"]:
        failed = ", ".join(part["name"] for part in found["parts"] if part["exit_code"])
        return f"tests/release.sh failed on {found['date']}, in: {failed}. Repair it. {CURE}"
    _need_history(root)
    if not found:
        if _git(root, "log", "-1", "--format=%h", "--", FILE):
            return f"{FILE} is gone. {CURE}"
        raise CannotTellError(f"There is no {FILE} yet. {CURE}")
    since = found["commit"]
    if _git(root, "merge-base", since, "HEAD") != since:  # of another history: count from the commit of the file
        since = _git(root, "log", "-1", "--format=%H", "--", FILE)
    if not since:
        return f"{FILE} is of commit {found['commit'][:12]}, which is not in this history. {CURE}"
    commits = int(_git(root, "rev-list", "--count", f"{since}..HEAD"))
    if commits > COMMITS:
        return f"tests/release.sh ran {commits} commits ago, on {found['date']}; at most {COMMITS} are allowed. {CURE}"
    return ""


def _need_history(root: Path) -> None:
    """Raise where commits cannot be counted."""
    if not shutil.which("git"):
        raise CannotTellError("git is not installed.")
    if not (root / ".git").exists() or not _git(root, "rev-parse", "HEAD"):
        raise CannotTellError(f"{root} is not a git repository that this user may read.")
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise CannotTellError("This is a shallow clone, in which commits cannot be counted.")


def _git(root: Path, *arguments: str) -> str:
    """What git prints; empty where it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.strip()


if __name__ == "__main__":
    _, _commit, _parts, _file = sys.argv
    Path(_file).write_text(json.dumps(result(_commit, read_parts(Path(_parts))), indent=1) + "\n")
    print(f"\n{Path(_file).read_text()}")
