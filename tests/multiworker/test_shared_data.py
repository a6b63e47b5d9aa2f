"""`mk.data.distribute` on real workers: shards are disjoint and complete, in as many steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow
EXAMPLES, BATCH, WORKERS = 49, 12, 3
EVERYTHING = list(range(EXAMPLES))


def split() -> mk.data.Split:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(EXAMPLES)[:, None], rng.normal(size=(EXAMPLES, 3))], 1)  # a number, and features
    return mk.data.arrays(x.astype("float32"), (x[:, 1] > 0).astype("int64"), num_classes=2)


def local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0].numpy()


def shared(strategy: tf.distribute.Strategy, data: Any) -> list[list[int]]:
    """This worker's rows of each step."""
    return [local(strategy, x)[:, 0].astype(int).tolist() for x, _ in mk.data.distribute(data, strategy)]


def parts(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """What this worker gets of each kind of data."""
    own = folder / f"worker{mk.strategy.worker_index(strategy)}"  # as if each had a disk of its own
    mk.data.write_records(split(), own, num_files=7)
    arrays = mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)
    files = mk.data.records(own, global_batch_size=BATCH)
    data = {"arrays": arrays, "files": files, "a dataset": arrays.dataset(), "a dataset of files": files.dataset()}
    return {kind: shared(strategy, one) for kind, one in data.items()}


@pytest.fixture(scope="module")
def found(on_workers: Any, folder: Path) -> list[dict[str, Any]]:
    """What each worker got."""
    return on_workers(parts, folder, workers=WORKERS)


def together(parts: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def rows(found: list[dict[str, Any]], kind: str) -> list[list[list[int]]]:
    """By worker and step."""
    return [worker[kind] for worker in found]


def batches(found: list[dict[str, Any]], kind: str) -> list[list[int]]:
    """The global batch of each step."""
    return [together(parts) for parts in zip(*rows(found, kind), strict=True)]


def test_every_example_reaches_one_worker_once_in_as_many_steps(found):
    for kind in found[0]:
        seen = [sorted(together(worker)) for worker in rows(found, kind)]
        assert sorted(together(seen)) == EVERYTHING, kind
        assert len({len(worker) for worker in rows(found, kind)}) == 1, kind
        assert any([] in worker for worker in rows(found, kind)), "no empty share"  # the last batch has one example


def test_a_global_batch_is_that_of_one_process_and_does_not_depend_on_who_reads_what(found):
    recipe = mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)
    expected = [x[:, 0].numpy().astype(int).tolist() for x, _ in recipe.dataset()]
    assert batches(found, "arrays") == batches(found, "a dataset") == expected
    assert batches(found, "files") == batches(found, "a dataset of files")
