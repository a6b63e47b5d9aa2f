"""A shard with a changed byte: training, evaluation and prediction name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mirrorkit as mk
from mirrorkit.errors import DataError


def test_a_changed_byte_in_a_shard_is_named(line: Any, numbers: Any, tmp_path: Path) -> None:
    mk.data.write_records(mk.data.arrays(*numbers), tmp_path, num_files=3)
    shard = tmp_path / "data-00001-of-00003.tfrecord"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    recipe = mk.data.records(tmp_path, global_batch_size=20)
    recipe.verify()
    shard.write_bytes(content)
    for read in (line.fit, line.evaluate, line.predict, lambda data: data.verify()):
        with pytest.raises(DataError, match=rf"{shard.name} is cut short or damaged after \d+ examples"):
            read(recipe)
