"""The licenses of what mirrorkit and each of its extras bring: `python tests/package/licenses.py [--write]`.

pip resolves each extra and reports the packages' own metadata; nothing is installed. Prints a table; `--write` puts it
into docs/security.md. Needs the network, pip 25 or newer, and some minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from pages import put_between  # noqa: E402

PAGE = ROOT / "docs/security.md"
BEGIN, END = "<!-- table: written by tests/package/licenses.py -->", "<!-- end of the table -->"

PERMISSIVE = re.compile(
    r"0BSD|(\d-Clause )?BSD( License)?|BSD-\d-Clause|Apache([- ]2\.0)?( (Software )?License)?( 2\.0)?|CC0-1\.0"
    r"|CNRI-Python|DFSG approved|ISC|MIT(-0|-CMU)?( License)?|PSF-2\.0|Python Software Foundation License|Zlib"
)


def extras() -> list[str]:
    """The names of the extras in pyproject.toml."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    return re.findall(r"^(\w+) = \[", section.partition("\n\n")[0], re.MULTILINE)


def packages(extra: str) -> dict[str, Mapping[str, object]]:
    """The metadata of each package that an extra brings, or mirrorkit alone for ""."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, f"{ROOT}[{extra}]" if extra else str(ROOT)], check=True, stdout=subprocess.PIPE)
    found = [package["metadata"] for package in json.loads(done.stdout)["install"]]
    return {metadata["name"].lower(): metadata for metadata in found if metadata["name"] != "mirrorkit"}


def license_of(metadata: Mapping[str, object]) -> str:
    """What a package says, in the field that says most."""
    classifiers = [name.split(" :: ")[-1] for name in metadata.get("classifier", []) if name.startswith("License ::")]
    stated = [name for name in classifiers if name != "OSI Approved"]
    text = str(metadata.get("license", "")).strip().split("\n")[0]  # some put the whole license there
    said = metadata.get("license_expression") or ", ".join(stated) or text or "not stated"
    return said.replace("Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0")


def permissive(license: str) -> bool:
    """Whether it is a permissive one, or leaves the choice of one."""
    choices = [re.split(" AND |, ", choice) for choice in license.split(" OR ")]
    return any(all(PERMISSIVE.fullmatch(part) for part in choice) for choice in choices)


def row(name: str, found: Mapping[str, Mapping[str, object]]) -> str:
    """A row of the table."""
    licenses = {package: license_of(metadata) for package, metadata in sorted(found.items())}
    others = {package: license for package, license in licenses.items() if not permissive(license)}
    proprietary = [package for package in others if package.startswith("nvidia-")]
    listed = [f"{package}: {license}" for package, license in others.items() if package not in proprietary]
    listed += [f"{len(proprietary)} `nvidia-` packages: NVIDIA's own"] * bool(proprietary)
    return f"| {name} | {len(licenses)} | {len(licenses) - len(others)} | {'; '.join(listed)} |"


def main(arguments: Sequence[str]) -> None:
    """Print the table, and write it."""
    runtime = packages("")
    rows = [row("mirrorkit itself", runtime)]
    for extra in extras():
        rows.append(row(f"`{extra}`", {name: data for name, data in packages(extra).items() if name not in runtime}))
        print(rows[-1], flush=True)
    head = f"{time.strftime('%Y-%m-%d')}, Python {sys.version_info[0]}.{sys.version_info[1]}:\n\n"
    table = "\n".join([f"{head}| for | packages | permissive | others |\n|---|---|---|---|", *rows])
    print(table)
    if "--write" in arguments:
        put_between(PAGE, table, BEGIN, END)


if __name__ == "__main__":
    main(sys.argv[1:])
