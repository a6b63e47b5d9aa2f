"""Each worker reads its own rows: any number of workers trains on the same batches, and makes each picture once."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import own_input
import pytest
from launching import launched

import mirrorkit as mk

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RECIPES = ["batches", "resident", "records", "gzip", "in order"]


def write(folder: Path) -> Path:
    mk.data.write_records(own_input.split(), folder / "plain", num_files=3)
    mk.data.write_records(own_input.split(), folder / "gzip", num_files=5, gzip=True)
    return folder


@pytest.fixture(scope="module")
def alone(strategy_of, tmp_path_factory) -> dict[str, Any]:
    """What one process on one device comes to."""
    return own_input.train(strategy_of("one_device", 1), write(tmp_path_factory.mktemp("alone")))


@pytest.fixture(scope="module", params=[2, 3, 4])
def found(request, tmp_path_factory) -> list[dict[str, Any]]:
    """What each worker found."""
    folder = write(tmp_path_factory.mktemp("workers"))
    launched(HERE / "own_input.py", folder, folder=folder, workers=request.param)
    return [json.loads((folder / f"found{i}.json").read_text()) for i in range(request.param)]


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_pictures_whoever_makes_them(found, alone, name):
    joined = [
        list(itertools.chain(*parts)) for parts in zip(*(worker[name]["pictures"] for worker in found), strict=True)
    ]
    assert joined == alone[name]["pictures"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_weights_and_history(found, alone, name):
    for worker in found:
        assert worker[name] | {"pictures": 0} == found[0][name] | {"pictures": 0}
    for one, other in zip(found[0][name]["weights"], alone[name]["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    for key, values in alone[name]["history"].items():
        np.testing.assert_allclose(found[0][name]["history"][key], values, atol=1e-5)


def test_predictions_and_evaluation_in_the_written_order(found, alone):
    np.testing.assert_allclose(found[0]["in order"]["predict"], alone["in order"]["predict"], atol=1e-4)
    assert found[0]["in order"]["evaluate"] == pytest.approx(alone["in order"]["evaluate"], abs=1e-5)


def test_a_function_of_the_users_gives_each_worker_its_shard(found, alone):
    for one, other in zip(found[0]["from_function"]["weights"], alone["from_function"]["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_workers_that_make_the_same_data_are_refused(found):
    for worker in found:
        assert "begin with the same batch, so examples would be trained on twice" in worker["refused"]


def test_each_example_is_decoded_by_one_worker(found):
    # in a second fit: before the first one each worker decodes a sample, which the checks of the first batch need
    decoded = Counter(itertools.chain(*(worker["decoded"] for worker in found)))
    last = own_input.EXAMPLES % own_input.BATCH
    everywhere = {} if min(mk.batching.per_replica_sizes(last, len(found))) else {len(found): last}
    assert Counter(decoded.values()) == {1: own_input.EXAMPLES - sum(everywhere.values()), **everywhere}


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> Path:
    """A folder with the checkpoints of two workers that left in the middle of their second epoch."""
    folder = write(tmp_path_factory.mktemp("left"))
    done = launched(HERE / "own_input.py", folder, "leave", folder=folder, check=False)
    assert done.returncode == 3, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_goes_on_within_an_epoch_on_any_number_of_workers(left, strategy_of, tmp_path, workers):
    whole = own_input.go_on(strategy_of("one_device", 1), write(tmp_path / "whole"))
    folder = Path(shutil.copytree(left, tmp_path / "folder"))
    launched(HERE / "own_input.py", folder, "go_on", folder=folder, workers=workers)
    weights = json.loads((folder / "weights0.json").read_text())
    for one, other in zip(weights, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    if workers == 2:
        undisturbed = write(tmp_path / "undisturbed")
        launched(HERE / "own_input.py", undisturbed, "go_on", folder=undisturbed, workers=2)
        assert weights == json.loads((undisturbed / "weights0.json").read_text())
