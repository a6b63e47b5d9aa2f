from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_a_page_that_is_not_what_was_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    table = arrow.table({"x": np.arange(1000.0), "y": np.arange(1000) % 3})
    parquet.write_table(table, file, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(file.read_bytes())
    place = content.index(np.arange(400.0, 410.0).tobytes())
    content[place : place + 8] = np.float64(-1).tobytes()  # a number like any other
    file.write_bytes(content)
    with pytest.raises(tf.errors.OpError, match=r"DataError.*file\.parquet"):
        list(mk.data.parquet(file, y="y", global_batch_size=100).dataset())
