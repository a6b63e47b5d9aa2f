"""Pages that compare mirrorkit with other projects say with which versions, and when that was checked."""

from __future__ import annotations

import datetime
import re

import pytest
from claims import MEASURED, PAGES, checked, compares, main

TODAY = datetime.date(2026, 11, 27)


@pytest.mark.parametrize("page", [page for page in PAGES if compares(page.read_text())], ids=lambda page: page.name)
def test_a_comparison_says_when_it_was_checked(page):
    if page.name in MEASURED:
        assert re.search(r"\b202\d-\d\d-\d\d\b", page.read_text())
    else:
        lines = checked(page.read_text())
        assert lines, f"{page.name} lacks a line such as 'Checked on {TODAY}: Keras 3.15.1.'"
        assert all(re.search(r"[a-z] \d+\.\d+", what) for _, what in lines), "no version"
        assert all(date <= datetime.date.today() for date, _ in lines)


def test_comparisons_are_found():
    found = {page.name for page in PAGES if compares(page.read_text())}
    assert {"why.md", "ddp.md", "differences.md", "porting.md", "containers.md"} | MEASURED <= found
    assert compares("text\n\n| | Horovod | mirrorkit |\n|---|---|\n| for | all |\n")
    assert not compares("| what | how |\n|---|---|\n| Horovod | mirrorkit |\n")


def test_claims_older_than_a_year_are_listed(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("text\n\nChecked on 2025-11-26: Keras 3.12,\nHorovod 0.28.1.\n\nChecked on 2025-11-27: orbit 2.\n")
    assert main([page], TODAY) == 1
    assert capsys.readouterr().out.splitlines() == [
        "OLD 2025-11-26 page.md: Keras 3.12, Horovod 0.28.1.",
        "2025-11-27 page.md: orbit 2.",
    ]
    assert main([page], TODAY - datetime.timedelta(1)) == 0
