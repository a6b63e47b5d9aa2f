"""The page's blocks that need a cluster (```py) run in a process of their own; tests/test_docs.py runs the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "parameter-server.md"


@pytest.mark.slow  # fast: what its blocks use, in test_in_process.py
def test_blocks_with_a_cluster_print_what_the_page_says(run_python):
    source = "\n".join(re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    promised = re.findall(r"^print\(.*\)  # (.+)$", source, re.MULTILINE)
    assert len(promised) == 3
    assert run_python(source, timeout=200).stdout.splitlines() == promised
