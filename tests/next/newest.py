"""Move the pins to the newest pre-releases, and say what fails there: `python tests/next/newest.py`."""

from __future__ import annotations

import re
import subprocess
import sys

from pre_releases import PINS, main


def newest(package: str) -> str:
    """Return the newest version that pip can find, pre-releases included."""
    ask = [sys.executable, "-m", "pip", "index", "versions", "--pre", package]
    found = re.search(r"\((\S+)\)", subprocess.run(ask, check=True, capture_output=True, text=True).stdout)
    assert found, f"pip knows no version of {package}"
    return f"{package}=={found[1]}"


if __name__ == "__main__":
    before = PINS.read_text().split()
    after = [newest(pin.split("==")[0]) for pin in before]
    PINS.write_text("".join(f"{pin}\n" for pin in after))
    print("\n".join(f"{old} -> {new}" for old, new in zip(before, after, strict=True)))
    sys.exit(main(after))
