"""Each worker reads its own rows: any number of workers trains on the same batches, and makes each picture once."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
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
PARTS = ["train", "decoded", "refused"]
Found = list[dict[str, Any]]  # of each worker


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The sets as files."""
    folder = tmp_path_factory.mktemp("files")
    mk.data.write_records(own_input.split(), folder / "plain", num_files=3)
    mk.data.write_records(own_input.split(), folder / "gzip", num_files=5, gzip=True)
    return folder


@pytest.fixture(scope="module")
def start(files, tmp_path_factory) -> Callable[..., Found]:
    """`start(workers, part, ...)`: what new workers found; `left`: they go on with a copy of these checkpoints."""

    def start(workers: int, *parts: str, left: Path | None = None) -> Found:
        folder = tmp_path_factory.mktemp(f"workers{workers}")
        if left is not None:
            shutil.copytree(left, folder / "checkpoints")
        launched(HERE / "own_input.py", files, folder, *parts, folder=folder, workers=workers)
        return [json.loads((folder / f"found{i}.json").read_text()) | {"folder": folder} for i in range(workers)]

    return start


@pytest.fixture(scope="module")
def two(start) -> Found:
    """What two workers found, which left two fits within an epoch."""
    return start(2, *PARTS, "leave")


@pytest.fixture(scope="module")
def left(two) -> Path:
    """The checkpoints of the fits that were left."""
    return two[0]["folder"] / "checkpoints"


@pytest.fixture(scope="module")
def again(start, left) -> Found:
    """What two new workers found, which went on."""
    return start(2, "go_on", left=left)


@pytest.fixture(scope="module")
def three(start, left) -> Found:
    """What three workers found, which went on too."""
    return start(3, *PARTS, "go_on", left=left)


@pytest.fixture(scope="module")
def four(start) -> Found:
    """What four workers found."""
    return start(4, *PARTS)


@pytest.fixture(scope="module", params=["two", "three", "four"])
def found(request) -> Found:
    """What each worker found."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def run(strategy_of, files, left, tmp_path_factory) -> own_input.Run:
    """One process with one device."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(left, folder / "checkpoints")
    return own_input.Run(strategy_of("one_device", 1), files, folder)


@pytest.fixture(scope="module")
def alone(run) -> dict[str, Any]:
    """What one process on one device comes to."""
    return run.parts(["train", "go_on"])


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_pictures_whoever_makes_them(found, alone, name):
    parts = [worker["train"][name]["pictures"] for worker in found]
    joined = [list(itertools.chain(*rows)) for rows in zip(*parts, strict=True)]
    assert joined == alone["train"][name]["pictures"]


@pytest.mark.parametrize("name", [*RECIPES, "from_function"])
def test_the_same_weights_and_history(found, alone, name):
    first, expected = found[0]["train"][name], alone["train"][name]
    for worker in found:
        assert worker["train"][name] | {"pictures": 0} == first | {"pictures": 0}
    assert_close(first["weights"], expected["weights"])
    for key, values in expected["history"].items():
        np.testing.assert_allclose(first["history"][key], values, atol=1e-5)


def test_predictions_and_evaluation_in_the_written_order(found, alone):
    first, expected = found[0]["train"]["in order"], alone["train"]["in order"]
    np.testing.assert_allclose(first["predict"], expected["predict"], atol=1e-4)
    assert first["evaluate"] == pytest.approx(expected["evaluate"], abs=1e-5)


def test_workers_that_make_the_same_data_are_refused(found):
    for worker in found:
        assert "begin with the same batch, so examples would be trained on twice" in worker["refused"]


def test_each_example_is_decoded_by_one_worker(found):
    # in a second fit: before the first one each worker decodes a sample, which the checks of the first batch need
    decoded = Counter(itertools.chain(*(worker["decoded"] for worker in found)))
    last = own_input.EXAMPLES % own_input.BATCH
    everywhere = {} if min(mk.batching.per_replica_sizes(last, len(found))) else {len(found): last}
    assert Counter(decoded.values()) == {1: own_input.EXAMPLES - sum(everywhere.values()), **everywhere}


def test_a_fit_goes_on_within_an_epoch_on_any_number_of_workers(alone, two, again, three):
    for resumed in (alone, again[0], three[0]):
        assert_close(resumed["go_on"]["records"]["weights"], alone["train"]["records"]["weights"])
    assert again[0]["go_on"]["records"] | {"pictures": 0} == two[0]["train"]["records"] | {"pictures": 0}


def test_a_fit_of_data_of_their_own_goes_on_within_an_epoch_only_on_as_many_workers(alone, two, again, three):
    assert again[0]["go_on"]["from_function"] == two[0]["train"]["from_function"]
    for number, workers in ((1, [alone]), (3, three)):
        for worker in workers:
            assert f"on 2 workers; found {number}. " in worker["go_on"]["from_function"]


def test_between_epochs_it_goes_on_on_any_number(run, alone):
    for file in (run.folder / "checkpoints" / "from_function").iterdir():
        if file.name > "step-0000000004.npz":  # the end of the first epoch
            file.unlink()
    resumed = run.go_on()["from_function"]
    assert_close(resumed["weights"], alone["train"]["from_function"]["weights"])
