"""Both ends of the supported range, in new virtual environments: `python tests/package/supported_range.py`.

Run: python tests/package/supported_range.py [--end NAME ...] [--run NAME ...] [--tests ARGUMENT ...]
         [--python PATH ...] [--write]

Each end is a version of Python and what pip is asked for beside mirrorkit. Its environment gets mirrorkit's wheel, for
README's script in another folder, and then this checkout, for the doctor, README's first command and the fast suite.
Prints a table. `--write` keeps the results in docs/figures/supported.json (those of other ends and runs stay) and puts
the table into docs/hardware.md. Needs the network, and 3 GB of disk for a while. The exit code is 1 when something
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # any Python starts this, also one without mirrorkit

from pages import put_between  # noqa: E402

from mirrorkit import __version__, processor  # noqa: E402
from mirrorkit.supported import KERAS, PYTHON, TENSORFLOW, Version, written  # noqa: E402

FIGURES = ROOT / "docs/figures/supported.json"
PAGE = ROOT / "docs/hardware.md"
BEGIN, END = "<!-- table: written by tests/package/supported_range.py -->", "<!-- end of the table -->"

RUNS = ("wheel", "doctor", "example", "suite")
# The tests of this table wait for its end.
SUITE = ["-n", "2", "--dist", "loadfile"]
PACKAGES = ("tensorflow", "keras", "numpy")


@dataclass(frozen=True)
class End:
    """An environment: its Python, what pip is asked for, and what is run there."""

    python: Version
    packages: Sequence[str] = ()
    runs: Sequence[str] = RUNS


ENDS = {
    "oldest": End(PYTHON[0], [f"tensorflow=={written(TENSORFLOW[0])}.*", f"keras=={written(KERAS[0])}.*"]),
    "oldest-python": End(PYTHON[0], runs=RUNS[:-1]),  # what README's command brings there
    "newest": End(PYTHON[1]),
}


@dataclass(frozen=True)
class Result:
    """What one command came to, and with which versions."""

    end: str
    run: str
    command: str
    date: str
    versions: Mapping[str, str]
    exit_code: int
    seconds: int
    passed: int = 0  # of the suite
    failed: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)  # reasons, and how many tests

    def __str__(self) -> str:
        """A row of the table."""
        if self.run == "suite":
            outcome = f"{self.passed:,} passed, {len(self.failed)} failed, {sum(self.skipped.values())} skipped"
        else:
            outcome = f"exit code {self.exit_code}"
        versions = [self.versions[name] for name in ("python", *PACKAGES)]
        return f"| {' | '.join([*versions, f'`{self.command}`', outcome, str(self.seconds)])} |"


def place(result: Result) -> tuple[int, int]:
    """Where a result stands in the table."""
    return list(ENDS).index(result.end), RUNS.index(result.run)


def as_markdown(figures: Mapping[str, object], results: Iterable[Result]) -> str:
    """The machine, and a row for each command."""
    machine = f"{figures['processor']}, {figures['cores']} cores, {figures['memory_gib']} GiB, {figures['system']}"
    rows = sorted(results, key=place)
    dates = sorted({result.date for result in rows})
    head = f"{' and '.join(dates)}: mirrorkit {figures['mirrorkit']}; {machine}.\nCommand: `{figures['command']}`"
    columns = "| Python | TensorFlow | Keras | NumPy | run | result | s |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, "", columns, *map(str, rows)])


def read_figures() -> tuple[dict[str, object], list[Result]]:
    """The machine, and the results."""
    figures = json.loads(FIGURES.read_text())
    return figures, [Result(**result) for result in figures.pop("results")]


def interpreter(version: Version, given: Sequence[str]) -> str:
    """Find a Python of that version: among those given, or on the path."""
    for path in [*given, f"python{written(version)}"]:
        found = shutil.which(path)
        ask = [str(found), "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
        if found and subprocess.run(ask, capture_output=True, text=True).stdout.strip() == written(version):
            return found
    raise SystemExit(f"no Python {written(version)} on the path; give one with --python PATH.")


def first_command() -> list[str]:
    """README's first command after the set-up."""
    found = re.search(r"pip install -e \.(?:\s*&&\s*|\n)python (\S+\.py.*)", (ROOT / "README.md").read_text())
    assert found, "README shows no command after `pip install -e .`"
    return shlex.split(found[1])


def readme_script() -> str:
    """README's first block of Python."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found, "README shows no Python"
    return found[1]


def build_wheel(folder: Path, python: str = sys.executable) -> Path:
    """Build mirrorkit's wheel in a folder, from a copy: setuptools leaves what it built beside the source."""
    source = folder / "source"
    shutil.copytree(ROOT / "mirrorkit", source / "mirrorkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source], check=True)
    return next(folder.glob("mirrorkit-*.whl"))


def outcomes(report: Path) -> tuple[int, list[str], dict[str, int]]:
    """How many tests passed, the names of those that failed, and the reasons of the others."""
    passed, failed, skipped = 0, [], {}
    for case in ET.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif (skip := case.find("skipped")) is not None:
            reason = str(skip.get("message"))
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    return passed, failed, skipped


class Environment:
    """A new virtual environment in a folder."""

    def __init__(self, folder: Path, python: str, packages: Sequence[str]) -> None:
        # With the newest pip: that of Python 3.10 looks for old versions that fit for more than 20 minutes.
        subprocess.run([python, "-m", "venv", "--upgrade-deps", folder / "venv"], check=True)
        self._folder, self._packages = folder, packages
        self._python = str(folder / "venv/bin/python")
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "MIRRORKIT_DATA")}
        path = f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**inherited, "PATH": path, "TMPDIR": str(folder), "VIRTUAL_ENV": str(folder / "venv")}

    def _install(self, *what: str | Path) -> None:
        pip = [self._python, "-m", "pip", "install", "--quiet", *self._packages, *what]
        subprocess.run(pip, check=True, cwd=ROOT, env=self._variables)

    def _versions(self) -> dict[str, str]:
        code = f"import platform; from importlib.metadata import version; print(*map(version, {PACKAGES}), end=' ')"
        ask = [self._python, "-c", f"{code}; print(platform.python_version())"]
        found = subprocess.run(ask, check=True, capture_output=True, text=True, env=self._variables)
        return dict(zip((*PACKAGES, "python"), found.stdout.split(), strict=True))

    def run(self, end: str, run: str, tests: Sequence[str]) -> Result:
        """Run one of RUNS."""
        outside, report = self._folder / "outside", self._folder / "report.xml"
        if run == "wheel":
            self._install(build_wheel(self._folder, self._python))
            outside.mkdir()
            (outside / "readme_script.py").write_text(readme_script())
        else:
            self._install("-e", ".[test]" if run == "suite" else ".")
        commands = {
            "wheel": ["python", "readme_script.py"],
            "doctor": ["python", "-m", "mirrorkit", "doctor"],
            "example": ["python", *first_command()],
            "suite": ["pytest", *SUITE, *tests],
        }
        options = ["-q", "--tb=short", f"--junitxml={report}"] if run == "suite" else []
        shown = shlex.join(commands[run])
        print(f"\n== {end}: {shown}", flush=True)
        start = time.monotonic()
        here = outside if run == "wheel" else ROOT
        done = subprocess.run(["env", *commands[run], *options], cwd=here, env=self._variables)
        seconds = round(time.monotonic() - start)
        counts = outcomes(report) if run == "suite" else (0, [], {})
        today = time.strftime("%Y-%m-%d")
        return Result(end, run, shown, today, self._versions(), done.returncode, seconds, *counts)


def write(about: Mapping[str, object], results: Sequence[Result]) -> None:
    """Keep the results beside those of other ends and runs, and put the table into the page."""
    new = {(result.end, result.run) for result in results}
    kept = read_figures()[1] if FIGURES.exists() else []
    kept = [result for result in kept if (result.end, result.run) not in new]
    FIGURES.parent.mkdir(exist_ok=True)
    rows = [asdict(result) for result in sorted([*kept, *results], key=place)]
    FIGURES.write_text(json.dumps({**about, "results": rows}, indent=1) + "\n")
    put_between(PAGE, as_markdown(*read_figures()), BEGIN, END)


def main() -> int:
    """Make the environments, run, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--end", nargs="+", choices=list(ENDS), default=list(ENDS), help="default: all")
    parser.add_argument("--run", nargs="+", choices=RUNS, default=RUNS, help="default: all")
    parser.add_argument("--python", nargs="+", default=[], metavar="PATH", help="default: python3.N on the path")
    parser.add_argument("--write", action="store_true", help="keep the results, and put the table into the page")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=[], help="more arguments of pytest, to the end")
    arguments = parser.parse_args()
    pythons = {name: interpreter(ENDS[name].python, arguments.python) for name in arguments.end}
    results = []
    for name, python in pythons.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = Environment(Path(folder), python, ENDS[name].packages)
            runs = [run for run in ENDS[name].runs if run in arguments.run]
            results += [environment.run(name, run, arguments.tests) for run in runs]
    part = ["--tests", *arguments.tests] if arguments.tests else []
    about = {
        "command": shlex.join(["python", "tests/package/supported_range.py", "--write", *part]),
        "mirrorkit": __version__,
        "processor": processor.model(),
        "cores": processor.cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }
    print(f"\n{as_markdown(about, results)}")
    for result in results:
        for test in result.failed:
            print(f"failed, {result.end}: {test}")
        for reason, count in result.skipped.items():
            print(f"skipped, {result.end}: {count} x {reason}")
    if arguments.write:
        write(about, results)
    return 1 if any(result.exit_code for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
