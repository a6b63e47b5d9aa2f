"""weights=: how often examples and classes are drawn, the same on any number of workers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recipe_helpers import assert_workers_read_the_same, numbered, order_of
from scipy import stats

from mirrorkit import data
from mirrorkit.errors import RecipeError

LABELS = np.repeat([0, 1, 2], [80, 15, 5])
SPLIT = data.arrays(np.arange(100)[:, None], LABELS)


def drawn(epochs: int, split: data.Split = SPLIT, **options: Any) -> np.ndarray:
    """The numbers of the examples that some epochs draw, [epochs, N]."""
    recipe = data.batches(split, global_batch_size=32, **options)
    return np.array([recipe.order(epoch) for epoch in range(epochs)])


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ("balanced", {0: 1, 1: 1, 2: 1}),
        ({0: 2, 1: 1, 2: 0}, {0: 2, 1: 1, 2: 0}),
        (1.0 + LABELS, {0: 80, 1: 30, 2: 15}),
    ],
    ids=["balanced", "of classes", "of examples"],
)
def test_classes_and_their_examples_come_as_often_as_was_said(weights, shares):
    counts = np.bincount(drawn(300, weights=weights).ravel(), minlength=100)
    of_class = np.array([shares[label] for label in LABELS]) / np.bincount(LABELS)[LABELS]
    expected = of_class / of_class.sum() * counts.sum()
    assert not counts[expected == 0].any()
    assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-3


def test_without_replacement_each_comes_once_and_the_heavy_ones_first():
    weights = np.array([0, 1, 2, 4, 8])
    found = drawn(4000, data.arrays(np.arange(5)[:, None]), weights=weights, replacement=False, examples_per_epoch=4)
    assert {tuple(sorted(epoch)) for epoch in found.tolist()} == {(1, 2, 3, 4)}
    firsts = np.bincount(found[:, 0], minlength=5)
    assert stats.chisquare(firsts[1:], weights[1:] / 15 * 4000).pvalue > 1e-3
    of_4_first = found[found[:, 0] == 4]  # what comes second is drawn among those that are left
    seconds = np.bincount(of_4_first[:, 1], minlength=4)
    assert stats.chisquare(seconds[1:], weights[1:4] / 7 * len(of_4_first)).pvalue > 1e-3


@pytest.mark.parametrize("examples", [20, 70, 250])
def test_an_epoch_has_as_many_examples_as_was_said_on_any_number_of_workers(examples):
    recipe = data.batches(SPLIT, global_batch_size=32, weights="balanced", seed=3, examples_per_epoch=examples)
    assert recipe.num_examples == examples
    assert sum(recipe.batch_sizes()) == examples
    assert order_of(recipe, epoch=2) == recipe.order(2).tolist() != recipe.order(1).tolist()
    for workers in (2, 3):
        assert_workers_read_the_same(recipe, 1, 0, workers, 1)
    assert recipe.element_spec[0].shape[1:] == (1,)


def test_unshuffled_an_epoch_that_is_longer_than_the_set_begins_it_again():
    recipe = data.batches(SPLIT, global_batch_size=120, weights="balanced", examples_per_epoch=250)
    assert order_of(recipe.as_written()) == [*range(100), *range(100), *range(50)]


def test_a_batch_may_be_larger_than_the_set():
    options = {
        "global_batch_size": 40,
        "examples_per_epoch": 80,
        "weights": np.ones(30),
        "map": lambda x, y: (x + 1, y),
    }
    items = [(np.array([number]), np.int64(0)) for number in range(30)]
    for make, given in (
        (data.batches, numbered(30)),
        (data.source, numbered(30).as_element()),
        (data.source, items),
    ):
        recipe = make(given, **options)
        assert order_of(recipe) == [number + 1 for number in recipe.order(0)]


def test_other_weights_are_told_apart():
    def digest(weights: Any, **options: Any) -> Any:
        return data.batches(
            SPLIT, global_batch_size=20, examples_per_epoch=20, weights=weights, **options
        ).weights_digest

    assert digest("balanced") == digest({0: 2, 1: 2, 2: 2})
    assert len({digest("balanced"), digest({0: 1, 1: 2, 2: 3}), digest("balanced", replacement=False)}) == 3
    assert data.batches(SPLIT, global_batch_size=20).weights_digest is None


def test_all_that_read_by_number_draw_the_same(tmp_path):
    weights = np.linspace(0, 1, 30)
    options = {"global_batch_size": 8, "weights": weights, "examples_per_epoch": 50, "seed": 1}
    given = numbered(30)
    found = order_of(data.batches(given, **options), epoch=1)
    assert order_of(data.source(given.as_element(), **options), epoch=1) == found
    assert data.resident(given, **options).order(1).tolist() == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": np.ones(99)}, r"shape \[99\], but there are 100"),
        ({"weights": np.where(LABELS == 2, -1, 1)}, r"weights\[95\] is -1"),
        ({"weights": np.where(LABELS == 1, np.nan, 1)}, r"weights\[80\] is nan"),
        ({"weights": np.zeros(100)}, "All weights are 0"),
        ({"weights": {0: 0, 1: 0, 2: 0}}, "All weights are 0"),
        ({"weights": {0: 1, 2: 1}}, "none for the class 1"),
        ({"weights": {0: 1, 1: 1, 2: -0.5}}, r"weights\[2\] is -0.5"),
        ({"weights": {0: 1, 1: "often", 2: 1}}, "must be numbers"),
        ({"weights": "equal"}, "'equal'"),
        ({"weights": ["a"] * 100}, "must be numbers"),
        ({"weights": np.ones(100), "replacement": False, "examples_per_epoch": 101}, "only 100"),
        ({"weights": "balanced", "examples_per_epoch": 0}, "examples_per_epoch .* found 0"),
        ({"examples_per_epoch": 10}, "go with weights"),
        ({"weights": "balanced", "examples_per_epoch": 31, "drop_remainder": True}, "an epoch has 31"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, words):
    with pytest.raises(RecipeError, match=words):
        data.batches(SPLIT, global_batch_size=32, **options)


@pytest.mark.parametrize("labels", [None, np.linspace(0, 1, 100), np.stack([LABELS, LABELS], 1)])
def test_classes_need_class_indices(labels):
    with pytest.raises(RecipeError, match="no class indices"):
        data.batches(data.arrays(np.arange(100)[:, None], labels), global_batch_size=32, weights="balanced")


def test_of_a_source_the_classes_are_not_known():
    with pytest.raises(RecipeError, match="no class indices"):
        data.source((np.arange(100), LABELS), global_batch_size=32, weights="balanced")
