"""Workers that do not read the same data say so before the first step, and do not wait for each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import differing_data
import numpy as np
import pytest
from launching import launched

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

SAYS = {
    "a shuffle without a seed": "the first batch is one on worker 0, and another on worker 1",
    "another seed": "the first batch is one on worker 0, and another on worker 1",
    "another seed, resident": "the first batch is one on worker 0, and another on worker 1",
    "other files": "the first batch is one on worker 0, and another on worker 1",
    "no batch": "worker 1 found no batch, and the others did",
    "fewer batches": "an epoch's number of batches is one on worker 0, and another on worker 1",
}
ENDS = "The data ended after 3 batches on worker 1, but not on worker 0."
SAYS_IN_PASSES = {
    "fit ends earlier": ENDS,
    "evaluate ends earlier": ENDS,
    "validation of other data": "must read the same global batches of the validation, of which",
    "predict ends earlier": ENDS,
    "predict fewer batches": "an epoch's number of batches is one on worker 0, and another on worker 1",
    "predict other data": "the first batch is one on worker 0, and another on worker 1",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    launched(HERE / "differing_data.py", folder, folder=folder)
    return [json.loads((folder / f"found{i}.json").read_text()) for i in (0, 1)]


@pytest.mark.parametrize("what", SAYS)
def test_both_workers_say_what_differs(found, what):
    for worker in found:
        assert SAYS[what] in worker["errors"].get(what, "no error"), worker["errors"]
        assert "Set the same seed on every worker" in worker["errors"][what]


@pytest.mark.parametrize("what", SAYS_IN_PASSES)
def test_every_pass_says_what_differs_and_waits_for_nobody(found, what):
    for worker in found:
        assert SAYS_IN_PASSES[what] in worker["errors"].get(what, "no error")


def test_nothing_was_trained_on_data_that_differ(found):
    for worker in found:
        assert worker["after"] == worker["before"] == found[0]["before"]


def test_inputs_augmented_differently_are_trained_on(found):
    assert found[0]["end"] == found[1]["end"] != found[0]["before"]


def test_the_look_at_the_first_batch_changes_nothing(found, strategy_of):
    expected = differing_data.trained(strategy_of("mirrored", 2))
    assert found[0]["trained"] == found[1]["trained"]
    for a, b in zip(found[0]["trained"], expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
