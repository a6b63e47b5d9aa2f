"""An epoch is not finished on the same examples in other files, whose order is another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.input.source import source_of

_X = np.arange(80, dtype=np.float32).reshape(40, 2)
_SPLIT = mk.data.arrays(_X, np.arange(40) % 2)


def _records(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    mk.data.write_records(_SPLIT, folder, num_files=[2, 4][layout])
    return mk.data.records(folder, global_batch_size=8, **options)


def _parquet(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": _X[:, 0], "b": _X[:, 1], "y": np.arange(40) % 2})
    folder.mkdir()
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "all.parquet", row_group_size=[20, 10][layout])
    return mk.data.parquet(folder / "all.parquet", y="y", global_batch_size=8, **options)


def _images(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    for number in range(8):
        name = ["{}", "of_{}"][layout].format([number, 7 - number][layout])
        path = folder / "ab"[number % 2] / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(np.full([2, 2, 1], number, np.uint8)).numpy())
    return mk.data.image_folder(folder, image_size=(2, 2), color_mode="grayscale", global_batch_size=4, **options)


KINDS: dict[str, Callable[..., mk.data.Recipe]] = {"records": _records, "parquet": _parquet, "images": _images}


def _order(recipe: mk.data.Recipe) -> str | None:
    return source_of(recipe).order


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_knows_the_files(kind: str, tmp_path: Path) -> None:
    first, other = (_order(KINDS[kind](tmp_path / str(n), n, shuffle=True)) for n in (0, 1))
    assert first != other
    shutil.move(tmp_path / "0", tmp_path / "elsewhere")
    assert _order(KINDS[kind](tmp_path / "0", 0, shuffle=True)) == first  # written again, as they were


def test_files_of_other_sizes_are_read_in_the_same_order_without_a_shuffle(tmp_path: Path) -> None:
    assert _order(_records(tmp_path / "0", 0)) == _order(_records(tmp_path / "1", 1))
