"""Parquet files with a missing value or a damaged part: a loop says so in the recipe's words alone."""

from __future__ import annotations

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_loop_names_file_and_column(damage, tmp_path, strategy_of):
    values = np.random.default_rng(0).normal(size=400)
    path = tmp_path / "a.parquet"
    column = pa.array([None if damage == "missing" and i == 350 else v for i, v in enumerate(values)], pa.float64())
    pq.write_table(pa.table({"real": column, "label": np.arange(400) % 3}), path, write_statistics=False)
    recipe = mk.data.parquet(path, x=["real"], y="label", global_batch_size=50)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        real = keras.Input((1,), name="real")
        model, optimizer = keras.Model({"real": real}, keras.layers.Dense(3)(real)), keras.optimizers.SGD(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))
    report = loop.fit(recipe, verbose=0) if damage == "damaged" else None
    if damage == "damaged":
        assert report.epochs[0].examples == 400
        content = bytearray(path.read_bytes())
        content[20:3000] = bytes(2980)
        path.write_bytes(content)
    words = "1 values are missing in the column 'real'" if damage == "missing" else "is damaged, or cannot be read"
    with pytest.raises(DataError, match=f"^{path}.*{words}") as raised:
        loop.fit(recipe, verbose=0)
    message = str(raised.value)
    assert "Traceback" not in message
    assert "errors.DataError" not in message
    _, at = message.splitlines()
    assert at.startswith("(The data raised this")
