"""What two workers send each other in a step, counted: the rows of tables that a batch looks up, not the tables."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_workers_send_rows_and_not_tables(script):
    """1,024 examples look up 2,048 of 1,200,000 rows of 32 numbers: 0.3 MB, where the tables have 154.

    The smaller table has 24 MiB: in one process Adam would be given its dense gradient.
    """
    benchmark, sizes = script("bytes_between_workers"), script("kinds.models")
    tables = (sizes.USERS + sizes.ITEMS) * sizes.FEATURES * 4
    (dense,) = benchmark.measured("dense", "adagrad", steps=2, epochs=1)
    assert min(dense) > tables, "what is sent is not counted"
    for optimizer in ("adagrad", "adam"):
        (rows,) = benchmark.measured("rows", optimizer, steps=2, epochs=1)
        assert all(0.2e6 < one <= 1e6 for one in rows), (optimizer, rows)
