"""Every Python block of README and docs is run, and what prints are said to show is compared with what they show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# No code of their own: tables, and the commands that made them.
TABLES = [ROOT / "docs" / name for name in ("corpus.md", "hardware.md", "speed-figures.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIRST_READ = ("README.md",)  # the other pages run in the slow set
RUN = [
    pytest.param(page, id=page.name, marks=[] if page.name in FIRST_READ else pytest.mark.slow)
    for page in PAGES
    if page not in TABLES
]


def python_only(page: str) -> str:
    """The Python blocks of a page, one namespace; other lines become empty, so that line numbers stay the page's."""
    lines, inside = [], False
    for line in page.splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines) + "\n"


def promised(source: str) -> list[str]:
    """What the page says that its prints show, in order."""
    return re.findall(r"^\s*print\(.*\)  # (.+)$", source, re.MULTILINE)


@pytest.mark.parametrize("page", RUN)
def test_blocks_run_and_print_what_the_page_says(page, tmp_path, monkeypatch, capfd):
    source = python_only(page.read_text())
    assert source.strip(), "a page without a Python block"
    script = tmp_path / f"{page.stem}.py"  # a file, not exec: tf.function reads the source of what it converts
    script.write_text(source)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    printed = capfd.readouterr().out.splitlines()
    remaining = iter(printed)
    for expected in promised(source):
        assert any(line == expected for line in remaining), f"{expected!r} is not printed (in this order): {printed}"


def test_the_checker_sees_code_and_claims():
    page = (
        "text\n```python\nprint(1 + 1)  # 2\n```\nprint(9)  # 9\n```\nshell\n```\n```python\nx = 3  # no claim\n```\n"
    )
    source = python_only(page)
    assert source.splitlines() == ["", "", "print(1 + 1)  # 2", "", "", "", "", "", "", "x = 3  # no claim", ""]
    assert promised(source) == ["2"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_commands_lead_somewhere(page):
    text = page.read_text()
    targets = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert not [target for target in targets if not (page.parent / target).exists()]
    scripts = re.findall(r"python (\S+\.py)", text)
    assert not [script for script in scripts if "/" in script and not (ROOT / script).exists()]


def anchors(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_a_heading_find_it(page):
    links = re.findall(r"\]\(([^)#\s]*\.md)?#([^)\s]+)\)", page.read_text())
    missing = [
        (target, anchor) for target, anchor in links if anchor not in anchors(page.parent / target if target else page)
    ]
    assert not missing


def test_every_page_is_in_the_table_of_contents_and_in_readme():
    nav = re.findall(r"^  - .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = sorted(page.name for page in PAGES[1:])
    assert sorted(nav) == pages
    assert all(f"docs/{name}" in PAGES[0].read_text() for name in pages)
