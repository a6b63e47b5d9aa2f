"""The table of licenses in docs/security.md is whole; a license that binds a program is not called permissive."""

from __future__ import annotations

import re

import pytest
from licenses import BEGIN, END, PAGE, extras, license_of, permissive


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
