"""The table of docs/foreign.md: other projects' own tests, with mirrorkit's arithmetic in place of theirs.

Run: pip install -e '.[test,foreign]' && python tests/foreign/run.py [--write docs/foreign.md] [--only NAME ...]

The tests come from the installed packages. Prints the table, and writes it into the page, between the lines that mark
it. The exit code is 1 when a test fails.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "equivalence")]

from pages import put_between
from recorder import RESULTS
from table import heading

from mirrorkit import subprocesses

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- table: written by tests/foreign/run.py -->", "<!-- end of the table -->"


class Suite(NamedTuple):
    """Tests of another project, and what takes mirrorkit into them."""

    package: str  # of the tests
    what: str
    plugin: str  # a plugin of pytest that lies here
    files: str  # in the folder of the package
    unless_called: str  # why a test that passes without mirrorkit proves nothing about it
    needs: Sequence[str] = ()  # packages beside it


SUITES = {
    "optimizers": Suite(
        "keras",
        "optimizers: `mk.optim.functional_apply` computes every update",
        "by_functional_apply",
        "keras/src/optimizers/*_test.py",
        unless_called="it makes no update (configurations, arguments, files, one part of an update)",
    ),
    "metrics": Suite(
        "keras",
        "metrics: each update is summed over the shares of three replicas",
        "by_totals",
        "keras/src/metrics/*_test.py",
        needs=("scipy",),
        unless_called="it updates no metric outside of a compiled model (configurations, arguments, functions)",
    ),
}


class Outcome(NamedTuple):
    """What a suite came to: how many tests passed, which failed and how, and why the others do not apply."""

    passed: int
    failed: Mapping[str, str]
    beside: Mapping[str, int]
    calls: int

    @property
    def tests(self) -> int:
        """How many there are."""
        return self.passed + len(self.failed) + sum(self.beside.values())


def outcome(suite: Suite, tests: Mapping[str, Mapping]) -> Outcome:
    """Sort what the recorder has kept; a failure counts only where mirrorkit took part or could have."""
    failed: dict[str, str] = {}
    beside: collections.Counter[str] = collections.Counter()
    passed = 0
    for name, test in tests.items():
        if test["outcome"] == "failed":
            failed[name] = test["message"]
        elif test["outcome"] == "skipped":
            beside[f"skipped by the suite: {test['message'].removeprefix('Skipped: ').rstrip('.')}"] += 1
        elif test["reasons"]:
            beside[test["reasons"][0]] += 1
        elif not test["calls"]:
            beside[suite.unless_called] += 1
        else:
            passed += 1
    return Outcome(passed, failed, dict(beside.most_common()), sum(test["calls"] for test in tests.values()))


def missing(suite: Suite) -> list[str]:
    """Return the packages that a suite needs and that are not installed."""
    return [name for name in (suite.package, *suite.needs) if importlib.util.find_spec(name.replace("-", "_")) is None]


def run(suite: Suite, only: str = "", plugins: Sequence[str] = (), paths: Sequence[Path] = ()) -> Outcome:
    """Run a suite in a process of its own.

    Args:
        suite: which.
        only: an expression that pytest takes for -k.
        plugins: further plugins of pytest, and `paths`, the folders that they lie in.
        paths: see `plugins`.
    """
    root = Path(importlib.util.find_spec(suite.package).origin).parents[1]
    environment = subprocesses.with_mirrorkit(os.environ)
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    search = [str(HERE), *map(str, paths), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(search), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        empty, results = Path(folder, "pytest.ini"), Path(folder, "results.json")
        empty.write_text("[pytest]\n")
        loaded = [option for name in dict.fromkeys(["recorder", suite.plugin, *plugins]) for option in ("-p", name)]
        files = [str(file) for file in sorted(root.glob(suite.files))]
        options = ["-c", str(empty), f"--rootdir={root}", "-q", "--tb=short", "-W", "ignore", *loaded]
        chosen = ["-k", f"not test_session and ({only})" if only else "not test_session"]  # tf.test.TestCase's own
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *chosen, *files],
            env=environment | {RESULTS: str(results)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not results.exists():
            raise SystemExit(f"{done.stdout}\n{suite.what}: pytest ended with exit code {done.returncode}.")
        return outcome(suite, json.loads(results.read_text()))


def as_markdown(outcomes: Mapping[str, Outcome]) -> str:
    """The table, and a list of why tests do not apply."""
    lines = ["| suite | version | tests | passed | failed | not applicable | calls of mirrorkit |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, found in outcomes.items():
        suite = SUITES[name]
        version = importlib.metadata.version(suite.package)
        counts = found.tests, found.passed, len(found.failed), sum(found.beside.values()), found.calls
        lines.append(f"| {suite.package}, {suite.what} | {version} | {' | '.join(f'{n:,}' for n in counts)} |")
    lines.append("\nWhy tests are not applicable:\n")
    for name, found in outcomes.items():
        lines += [f"- {SUITES[name].package}, {name}: {count}: {reason}." for reason, count in found.beside.items()]
    return "\n".join(lines)


def main() -> int:
    """Run, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    parser.add_argument("--only", nargs="+", choices=sorted(SUITES), metavar="NAME", help="suites to run")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write puts the whole table into the page; leave out --only")
    names = arguments.only or list(SUITES)
    if lacks := sorted({package for name in names for package in missing(SUITES[name])}):
        parser.error(f"Not installed: {', '.join(lacks)}. Run pip install -e '.[test,foreign]'.")
    outcomes = {}
    for name in names:
        outcomes[name] = found = run(SUITES[name])
        print(f"{name}: {found.passed} of {found.tests} tests passed, {len(found.failed)} failed", flush=True)
        for test, message in found.failed.items():
            print(f"  {test}\n    {message.replace(chr(10), chr(10) + '    ')}")
    text = f"{_heading(sum(found.tests for found in outcomes.values()))}\n\n{as_markdown(outcomes)}"
    print(f"\n{text}")
    if arguments.write:
        put_between(arguments.write, text, BEGIN, END)
    return 1 if any(found.failed for found in outcomes.values()) else 0


def _heading(tests: int) -> str:
    text = heading(tests, "python tests/foreign/run.py").replace(" cells, ", " tests, ")
    return text.replace("; workers are processes that talk over loopback", "")


if __name__ == "__main__":
    sys.exit(main())
