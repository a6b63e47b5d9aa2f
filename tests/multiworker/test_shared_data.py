"""`mk.data.distribute` on real workers: shards are disjoint and complete, and uneven or empty ones change no result."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared_data
import tensorflow as tf
from launching import launched

import mirrorkit as mk

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
EVERYTHING = list(range(shared_data.EXAMPLES))
CASES = [
    *("data, arrays", "data, seven files", "data, one file", "off, arrays"),
    *("file, seven files", "file, four files", "auto, arrays", "auto, seven files", "auto, one file", "file, one file"),
]
TRAINED = CASES[:-1]


@pytest.fixture(scope="module", params=[2, 3])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each worker got."""
    folder = tmp_path_factory.mktemp("run")
    launched(HERE / "shared_data.py", folder, *CASES, folder=folder, workers=request.param)
    return [json.loads((folder / f"found{i}.json").read_text()) for i in range(request.param)]


def together(parts: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def rows(found: list[dict[str, Any]], case: str) -> list[list[list[int]]]:
    """By worker and step."""
    return [worker[case]["rows"] for worker in found]


@pytest.mark.parametrize("case", TRAINED)
def test_every_example_reaches_one_worker_once(found, case):
    seen = [sorted(i for step in worker for i in step) for worker in rows(found, case)]
    if case.startswith("off"):
        assert seen == [EVERYTHING] * len(found)
    else:
        assert sorted(together(seen)) == EVERYTHING


@pytest.mark.parametrize("case", TRAINED)
def test_all_workers_take_the_same_number_of_steps(found, case):
    assert len({len(worker) for worker in rows(found, case)}) == 1


def test_there_are_empty_shares_among_the_cases(found):
    # the last batch has one example
    assert any([] in worker for worker in rows(found, "auto, arrays"))
    assert any([] in worker for worker in rows(found, "auto, seven files"))


@pytest.mark.parametrize("case", ["data, arrays", "auto, arrays"])
def test_a_global_batch_is_that_of_one_process(found, case):
    recipe = mk.data.batches(shared_data.split(), global_batch_size=shared_data.BATCH, shuffle=True)
    steps = [together(parts) for parts in zip(*rows(found, case), strict=True)]
    assert steps == [x[:, 0].numpy().astype(int).tolist() for x, _ in recipe.dataset()]


@pytest.mark.parametrize("files", ["seven files", "one file"])
def test_a_global_batch_of_files_does_not_depend_on_who_reads_what(found, files):
    policies = ["data", "auto", *(["file"] if files == "seven files" else [])]
    steps = [[together(parts) for parts in zip(*rows(found, f"{p}, {files}"), strict=True)] for p in policies]
    assert all(one == steps[0] for one in steps[1:])


@pytest.mark.parametrize("case", TRAINED)
def test_the_result_is_that_of_one_device_on_the_same_rows(found, case, strategy_of):
    split = shared_data.split()
    steps = [together(parts) for parts in zip(*rows(found, case), strict=True)]
    batches = [(split.images[step], split.labels[step]) for step in steps]
    spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    expected = shared_data.shared(strategy_of("one_device", 1), dataset, "data")
    assert expected["rows"] == steps
    for worker in found:
        assert worker[case]["totals"] == found[0][case]["totals"]
        assert worker[case]["weights"] == found[0][case]["weights"]
    np.testing.assert_allclose(found[0][case]["totals"], expected["totals"], rtol=1e-6)
    for one, other in zip(found[0][case]["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_fewer_files_than_workers_are_refused_by_all(found):
    says = f"RecipeError: autoshard='file' was asked for, but the set has 1 files for {len(found)} workers"
    for worker in found:
        assert says in str(worker["file, one file"])
