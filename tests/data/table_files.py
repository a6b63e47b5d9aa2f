"""Parquet files for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write_tables(folder: Path, counts: list[int], group: int = 13, **columns: Any) -> Path:
    """Files whose rows have the numbers from 0 on; `columns` give more columns for an array of numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for file, count in enumerate(counts):
        numbers = np.arange(first, first + count)
        made = {name: column(numbers) for name, column in columns.items()}
        table = pa.table({"number": numbers, **made, "label": numbers % 7})
        pq.write_table(table, folder / f"{file:02}.parquet", row_group_size=group)
        first += count
    return folder


def lists(numbers: np.ndarray) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 3).astype(np.float32)), 3)
