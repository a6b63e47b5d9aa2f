"""What the package says of itself: versions, extras, licences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from licenses import BEGIN, END, PAGE, extras, license_of, permissive

import mirrorkit
from mirrorkit.supported import KERAS, PYTHON, TENSORFLOW, written

ROOT = Path(__file__).parents[2]
RANGES = {"Python": PYTHON, "TensorFlow": TENSORFLOW, "Keras": KERAS}


def value_of(name: str, section: str = "project") -> object:
    """A value of pyproject.toml; Python 3.10 cannot read TOML, and these are written as in Python."""
    text = (ROOT / "pyproject.toml").read_text().partition(f"[{section}]\n")[2]
    found = re.search(rf"^{name} = (\[\n.*?^\]|.+?$)", text, re.MULTILINE | re.DOTALL)
    assert found, f"pyproject.toml has no {name} in [{section}]"
    return ast.literal_eval(found[1])


def test_the_bounds_are_those_that_the_code_checks():
    assert value_of("requires-python") == f">={written(PYTHON[0])}"
    # TensorFlow brings Keras; an older one than KERAS is refused at the import
    assert value_of("dependencies") == [f"tensorflow>={written(TENSORFLOW[0])}", "numpy", "typing-extensions"]
    assert value_of("gpu") == [f"tensorflow[and-cuda]>={written(TENSORFLOW[0])}"]
    assert value_of("target-version") == f"py{written(PYTHON[0]).replace('.', '')}"


def test_the_classifiers_are_those_of_the_range():
    given = [*value_of("classifiers")]
    oldest, newest = PYTHON
    minors = [f"Programming Language :: Python :: 3.{minor}" for minor in range(oldest[1], newest[1] + 1)]
    assert [name for name in given if name.startswith("Programming Language :: Python :: 3.")] == minors
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= {*given}
    assert not [name for name in given if name.startswith("License ::")], "beside an SPDX license it ends the build"
    assert value_of("license") == "Apache-2.0"
    assert given == sorted(given)


def test_the_changelog_begins_with_this_version():
    sections = re.findall(r"^## \[?([\d.]+)\]?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert mirrorkit.__version__ == sections[0]


def versions_on(page: Path, name: str) -> set[tuple[int, int]]:
    """The versions that a page names: "Python 3.10 to 3.13", "Keras older than 3.10"."""
    numbers = r"\d+\.\d+(?:\.\d+)*"
    found = re.findall(rf"{name}(?: older than| \|)? ({numbers}(?:(?:, | to | and | or ){numbers})*)", page.read_text())
    each = [number.split(".") for group in found for number in re.findall(numbers, group)]
    return {(int(major), int(minor)) for major, minor, *_ in each}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("page", ["README.md", "docs/hardware.md", "docs/getting-started.md", "CONTRIBUTING.md"])
def test_a_page_names_versions_of_the_range_only(page, name):
    oldest, newest = RANGES[name]
    outside = {version for version in versions_on(ROOT / page, name) if not oldest <= version <= newest}
    assert not outside, f"{page} names {name} {outside}; mirrorkit/supported.py says {oldest} to {newest}"


def test_the_page_of_systems_names_both_ends():
    page = (ROOT / "docs/hardware.md").read_text()
    for name, ends in RANGES.items():
        assert f"\n| {name} | {' to '.join(map(written, ends))}" in page


def test_the_wheel_will_hold_every_file():
    """setuptools takes folders with an `__init__.py`, and of other files those that it is told of."""
    files = [path for path in (ROOT / "mirrorkit").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    folders = {path.parent for path in files}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]
    assert (
        [path.name for path in files if path.suffix != ".py"]
        == value_of("mirrorkit", "tool.setuptools.package-data")
        == ["py.typed"]
    )
    assert value_of("include") == ["mirrorkit*"]


def install_lines(*patterns: str) -> list[str]:
    """What follows `pip install` in the files of these patterns."""
    files = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"]
    return [line for path in files for line in re.findall(r"pip install (.*)", path.read_text())]


def test_install_lines_work_for_a_clone_and_for_an_installed_package():
    """mirrorkit is on no index: a page names the folder, and the package, which may be installed, what is missing."""
    pages, package = install_lines("*.md", "docs/**/*.md", "examples/**/*"), install_lines("mirrorkit/**/*.py")
    assert len(pages) > 20 < 2 * len(package)
    assert not [line for line in pages + package if re.match(r"(-\S+ |'|\")*mirrorkit\b", line)]
    assert not [line for line in package if re.match(r"(-\S+ |'|\")*\.", line)]
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    known = {*re.findall(r"^(\w+) = \[", extras.partition("\n\n")[0], re.MULTILINE)}
    asked = {name for line in pages for names in re.findall(r"\.\[([\w,]+)\]", line) for name in names.split(",")}
    assert asked <= known
    assert {"gpu", "parquet", "test"} <= asked


# --- the table of licenses in docs/security.md is whole; a license that binds a program is not called permissive


def test_the_table_has_every_extra_and_nothing_under_a_gpl():
    table = PAGE.read_text().partition(f"{BEGIN}\n")[2].partition(END)[0]
    assert re.findall(r"^\| `?([\w ]+?)`? \| \d+ \| \d+ \| ", table, re.MULTILINE) == ["mirrorkit itself", *extras()]
    assert "GPL" not in table


@pytest.mark.parametrize(
    ("metadata", "free"),
    [
        ({"license_expression": "BSD-3-Clause AND 0BSD AND CC0-1.0"}, True),
        ({"license_expression": "MIT OR GPL-2.0-only"}, True),
        ({"license_expression": "MIT AND GPL-2.0-only"}, False),
        ({"classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License"], "license": "GPL"}, True),
        ({"classifier": ["License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)"]}, False),
        ({"license": "MIT License\n\nCopyright (c) 2019"}, True),
        ({"license": "see LICENSE"}, False),
        ({}, False),
    ],
)
def test_only_licenses_of_the_list_are_permissive(metadata, free):
    assert permissive(license_of(metadata)) is free
