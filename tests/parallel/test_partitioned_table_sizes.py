from __future__ import annotations

from typing import Any

import pytest

import mirrorkit as mk


@pytest.mark.parametrize(("rows", "width"), [(0, 4), (4, 0), (-1, 4), (4, 1.5)])
def test_a_table_has_rows_and_columns(rows: Any, width: Any, strategy_of: Any) -> None:
    with pytest.raises(mk.errors.StepError, match="must be a whole number from 1 on"):
        mk.parallel.PartitionedTable(strategy_of("one_device", 1), rows=rows, width=width)
