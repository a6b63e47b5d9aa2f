"""Tables that are updated in place, on GPUs that are not there: every operation has a kernel, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gpu_placement import placement

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.reduce import sparse_gradient
from mirrorkit.train.step import facts, tables

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_tables")]

L, o = keras.layers, keras.optimizers
_SIZE, _WIDTH, _BATCH = 8192, 32, 12
_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: o.SGD(0.5),
    "Adagrad": lambda: o.Adagrad(o.schedules.ExponentialDecay(0.5, 2, 0.7)),
    "Adam": lambda: o.Adam(0.02),
}


def _made(name: str, **options: Any) -> Callable[[], Any]:
    def make_step() -> Any:
        x = keras.Input((5,), dtype="int64")
        model = keras.Model(x, L.Dense(1)(L.GlobalAveragePooling1D()(L.Embedding(_SIZE, _WIDTH)(x))))
        return mk.train.Step(model, _OPTIMIZERS[name](), loss="mse", **options)

    return make_step


def _data(source: str) -> Any:
    """Four whole batches, and one that leaves a replica without an example."""
    rng = np.random.default_rng(0)
    count = 4 * _BATCH + 1
    split = mk.data.arrays(rng.integers(0, _SIZE, (count, 5)), rng.normal(size=(count, 1)).astype("float32"))
    return getattr(mk.data, source)(split, global_batch_size=_BATCH, shuffle=True, seed=0)


def _report(name: str, source: str = "batches", **options: Any) -> Any:
    return placement(_made(name, **options), _data(source), devices="gpu:2")


@pytest.mark.parametrize(
    ("name", "source", "options"),
    [
        ("Adam", "batches", {"loss_scale": "dynamic", "sparse_embeddings": True}),
        ("Adagrad", "resident", {"sparse_embeddings": True}),
        ("Adam", "batches", {"sparse_embeddings": "lazy"}),
    ],
)
def test_clean(name: str, source: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK", 3000 * _WIDTH * 4)  # blocks in a loop, and a rest
    report = _report(name, source, **options)
    assert report.problems == []
    assert all(call.to_host == 0 for call in report.calls)
    assert report["train"].step.kernels_on("GPU:1") > 0


def test_rows_that_the_host_would_count_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose."""

    def unique(message: Any) -> Any:
        found = summed(message)
        return found._replace(number=tf.unique(found.ids)[1])

    summed = sparse_gradient.summed
    monkeypatch.setattr(facts, "summed", unique)
    assert _report("SGD", sparse_embeddings=True).problems != []
