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
SHARED = ["data, arrays", "data, seven files", "off, arrays", "file, seven files", "auto, arrays", "auto, seven files"]
CASES = [*SHARED, "file, one file"]
FILES = {"seven files": 7, "one file": 1}


def split() -> mk.data.Split:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(EXAMPLES)[:, None], rng.normal(size=(EXAMPLES, 3))], 1)  # a number, and features
    return mk.data.arrays(x.astype("float32"), (x[:, 1] > 0).astype("int64"), num_classes=2)


def local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0].numpy()


def shared(strategy: tf.distribute.Strategy, data: Any, policy: str) -> list[list[int]] | str:
    """This worker's rows of each step, or why there are none."""
    try:
        batches = mk.data.distribute(data, strategy, autoshard=policy)
        return [local(strategy, x)[:, 0].astype(int).tolist() for x, _ in batches]
    except (mk.errors.MirrorkitError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {error}"


def parts(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """What this worker gets in each case."""
    own = folder / f"worker{mk.strategy.worker_index(strategy)}"  # as if each had a disk of its own
    data = {"arrays": mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)}
    for name, shards in FILES.items():
        mk.data.write_records(split(), own / name, num_files=shards)
        data[name] = mk.data.records(own / name, global_batch_size=BATCH)
    return {case: shared(strategy, data[case.partition(", ")[2]], case.partition(", ")[0]) for case in CASES}


@pytest.fixture(scope="module")
def found(on_workers: Any, folder: Path) -> list[dict[str, Any]]:
    """What each worker got."""
    return on_workers(parts, folder, workers=WORKERS)


def together(parts: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def rows(found: list[dict[str, Any]], case: str) -> list[list[list[int]]]:
    """By worker and step."""
    return [worker[case] for worker in found]


def batches(found: list[dict[str, Any]], case: str) -> list[list[int]]:
    """The global batch of each step."""
    return [together(parts) for parts in zip(*rows(found, case), strict=True)]


def test_every_example_reaches_one_worker_once_in_as_many_steps(found):
    for case in SHARED:
        seen = [sorted(together(worker)) for worker in rows(found, case)]
        if case.startswith("off"):
            assert seen == [EVERYTHING] * len(found)
        else:
            assert sorted(together(seen)) == EVERYTHING, case
        assert len({len(worker) for worker in rows(found, case)}) == 1, case
    for case in ("auto, arrays", "auto, seven files"):  # the last batch has one example
        assert any([] in worker for worker in rows(found, case)), "no empty share"


def test_a_global_batch_is_that_of_one_process_and_does_not_depend_on_who_reads_what(found):
    recipe = mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)
    expected = [x[:, 0].numpy().astype(int).tolist() for x, _ in recipe.dataset()]
    assert batches(found, "data, arrays") == batches(found, "auto, arrays") == expected
    for policy in ("auto", "file"):
        assert batches(found, f"{policy}, seven files") == batches(found, "data, seven files")


def test_fewer_files_than_workers_are_refused_by_all(found):
    says = f"1 files for {len(found)} workers"
    for worker in found:
        assert says in str(worker["file, one file"])
