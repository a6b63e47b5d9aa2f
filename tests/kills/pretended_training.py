"""As `killed_training.py` for whoever watches it, but without TensorFlow: it adds numbers up, and can do wrong.

The name of the file that it is started from says what: `leaves a child`, `leaves a file`, `changes a bit`, `forgets a
checkpoint`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--out", "--folder", "--log", "--epochs", "--pace"):
        parser.add_argument(name)
    options = parser.parse_args()
    wrong = Path(sys.argv[0]).stem
    steps, total, folder = 0, 0.0, Path(options.folder or "none")
    saved = sorted(folder.glob("step-*.npz"))
    if saved and wrong != "forgets a checkpoint":
        steps = int(saved[-1].stem.partition("-")[2])
        total = float(np.load(saved[-1])["total"]) + (1e-9 if wrong == "changes a bit" else 0.0)
    if wrong == "leaves a child":
        subprocess.Popen(["sleep", "30"], start_new_session=True)
    if wrong == "leaves a file":
        Path(tempfile.mkstemp(prefix="forgotten")[1]).touch()
    with open(options.log or os.devnull, "a", buffering=1) as log:
        log.write(f"begin {steps}\n")
        while steps < 20 * int(options.epochs):
            steps, total = steps + 1, total + 1 / (steps + 1)
            if options.folder and steps % 5 == 0:
                unfinished = folder / f"step-{steps:010d}.npz.tmp"
                with unfinished.open("wb") as file:
                    np.savez(file, total=total)
                unfinished.rename(unfinished.with_suffix(""))
                for old in sorted(folder.glob("step-*.npz"))[:-3]:
                    old.unlink()
            log.write(f"step {steps}\n")
            time.sleep(0.003 if options.folder else 0)
    np.savez(options.out, total=total)


if __name__ == "__main__":
    main()
