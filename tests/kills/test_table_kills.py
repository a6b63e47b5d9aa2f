"""Two kills within saves of a large table; `table_kills.py` has more rows, and as many kills as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest
import table_kills


@pytest.mark.slow
@pytest.mark.alone  # a save takes a fraction of a second, within which the kill has to come
@pytest.mark.timeout(1200)
def test_kills_within_saves_of_a_table_change_no_bit(tmp_path: Path) -> None:
    found = table_kills.series(300_000, 2, "adagrad", tmp_path)
    assert not found.problems
    assert any(killed.life.unfinished for killed in found.killed)
    assert [killed.life.newest for killed in found.killed] == sorted({killed.life.newest for killed in found.killed})
    variables = {path: digests for path, *digests in found.last["variables"]}
    assert len(variables) == len(found.last["variables"]) > 4
    assert all(one == other for one, other in variables.values())  # the replicas
    assert len(found.last["history"]["loss"]) == 3
