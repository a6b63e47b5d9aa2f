"""README's script and a sample of the tests on pre-releases: `python tests/next/pre_releases.py`.

They run in a new virtual environment with the TensorFlow and Keras of `pins.txt`. The sample: the private names that
mirrorkit uses, the optimizers, and some trainings against plain Keras. Needs the network, and 2 GB of disk for a while.
The exit code is 0 where pip cannot find a pinned version ("not run"), and 1 when something failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).with_name("pins.txt")
TESTS = [
    *("tests/test_private.py", "tests/train/test_private_names.py", "tests/optim"),
    *(f"tests/train/keras_model/test_{name}.py" for name in ("custom_gradients", "kept", "seeds")),
    "tests/train/test_as_keras.py",
    *(f"tests/train/replica_code/test_{name}.py" for name in ("inlining", "keras_calls")),
]
ROWS = ["weight decay", "class weights", "Embedding", "F1", "synchronized BatchNorm", "transformer"]
_ROW = "tests/equivalence/test_every_row.py::test_every_row_is_equal_within_rounding"
_NOT_FOUND = "No matching distribution found"


def install(folder: Path, requirements: list[str]) -> str | None:
    """Make an environment; return what of the requirements pip cannot find, or None."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/pip", "--quiet", "--disable-pip-version-check"]
    needed = [*requirements, "pytest", "pytest-timeout", "pytest-xdist"]
    done = subprocess.run([*pip, "install", *needed], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        missing = [line for line in done.stderr.splitlines() if _NOT_FOUND in line]
        if not missing:
            raise SystemExit(1)
        return missing[0]
    # `keras` and `keras-nightly` write the same folder: whichever came last would be there.
    subprocess.run([*pip, "uninstall", "--yes", "keras"], check=True, stderr=subprocess.DEVNULL)
    nightly = [one for one in requirements if one.startswith("keras-nightly")]
    subprocess.run([*pip, "install", "--no-deps", "--force-reinstall", *nightly], check=True)
    return None


def failures(python: Path, outside: Path) -> list[str]:
    """Run the script in another folder, and the sample; return what failed."""
    sys.path.insert(0, str(ROOT / "tests/package"))
    from supported_range import readme_script

    (outside / "readme_script.py").write_text(readme_script())
    # Twice quiet: this is a part of a longer run, whose own summary counts.
    pytest = [python, "-m", "pytest", "-qq", "-n", "2", "-p", "no:cacheprovider"]
    commands = {
        "README's script": ([python, "readme_script.py"], outside),
        "tests": ([*pytest, *TESTS], ROOT),
        "equivalence": ([*pytest, "-m", "", *(f"{_ROW}[{row}]" for row in ROWS)], ROOT),
    }
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "MIRRORKIT_DATA", "VIRTUAL_ENV")}
    failed = []
    for name, (command, folder) in commands.items():
        start = time.monotonic()
        done = subprocess.run(command, cwd=folder, env={**inherited, "PYTHONPATH": str(ROOT)})
        print(f"-- {name}: exit code {done.returncode} after {time.monotonic() - start:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    return failed


def main(requirements: list[str]) -> int:
    """Install, run, print; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        if missing := install(Path(folder, "venv"), requirements):
            print(f"not run: {missing}")
            return 0
        print(f"-- {', '.join(requirements)}: installed after {time.monotonic() - start:.0f} s", flush=True)
        outside = Path(folder, "outside")
        outside.mkdir()
        failed = failures(Path(folder, "venv/bin/python"), outside)
    print(f"-- on {', '.join(requirements)}: {'failed: ' + ', '.join(failed) if failed else 'all as it must be'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(PINS.read_text().split()))
