"""mix: the share and the order of each set, within batches and by whole batches, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from recipe_helpers import assert_same, assert_workers_read_the_same, collect, order_of

from mirrorkit import data
from mirrorkit.errors import RecipeError


def numbers(first: int, count: int, **options) -> data.Batches:
    """A set whose x are the numbers from `first` on."""
    split = data.arrays(np.arange(first, first + count)[:, None], np.arange(count) % 7)
    return data.batches(split, global_batch_size=10, **options)


A, B = numbers(0, 60, shuffle=True, seed=1), numbers(100, 14)


@pytest.mark.parametrize(
    ("options", "examples", "of_b"),
    [({}, 74, 18), ({"examples_per_epoch": 400}, 400, 100), ({"examples_per_epoch": 45}, 45, 11)],
)
def test_each_set_has_its_share_and_goes_on_where_it_stopped(options, examples, of_b):
    recipe = data.mix({A: 3, B: 1}, seed=5, **options)
    epochs = np.array([order_of(recipe, epoch) for epoch in range(4)])
    assert epochs.shape == (4, examples) == (4, recipe.num_examples)
    assert ((epochs >= 100).sum(axis=1) == of_b).all()
    assert recipe.order_in_words != data.mix({A: 2, B: 1}, seed=5, **options).order_in_words
    assert len({tuple(epoch >= 100) for epoch in epochs}) == 4  # the sets come in another order in each
    every = epochs.ravel()
    for one, found in ((A, every[every < 100]), (B, every[every >= 100] - 100)):
        own = np.concatenate([one.order(epoch) for epoch in range(30)])
        assert found.tolist() == own[: len(found)].tolist()


def test_the_batches_of_small_sets_have_the_size_that_was_asked_for():
    small = [data.batches(one.split, global_batch_size=64, shuffle=True) for one in (A, B)]
    recipe = data.mix(dict.fromkeys(small, 1), examples_per_epoch=150)
    assert recipe.global_batch_size == 64
    assert [len(x) for x, _ in collect(recipe.dataset())] == list(recipe.batch_sizes()) == [64, 64, 22]
    assert data.mix({recipe: 1}, examples_per_epoch=80).global_batch_size == 64
    fewer = data.mix(dict.fromkeys(small, 1), examples_per_epoch=50)
    assert (fewer.global_batch_size, fewer.steps_per_epoch) == (50, 1)
    assert data.mix({fewer: 1}, examples_per_epoch=80).global_batch_size == 64


@pytest.mark.parametrize("whole", [False, True])
def test_a_position_gives_what_the_whole_epoch_has_there(whole):
    recipe = data.mix({A: 2, numbers(100, 20): 1}, whole_batches=whole, examples_per_epoch=170, seed=2)
    batches = collect(recipe.dataset(3))
    for start in range(recipe.steps_per_epoch + 1):
        assert_same(collect(recipe.dataset(3, start)), batches[start:])
    is_mixed = [len({x > 99 for x in xs.ravel()}) > 1 for xs, _ in batches]
    assert any(is_mixed) == (not whole)
    assert [len(xs) for xs, _ in batches] == list(recipe.batch_sizes())
    assert recipe.element_spec[0].shape == recipe.dataset().element_spec[0].shape == (10, 1)


def test_of_whole_batches_a_worker_reads_its_rows():
    recipe = data.mix({A: 2, numbers(100, 20): 1}, whole_batches=True, seed=2)
    assert recipe.reads_own_rows
    for workers in (2, 3):
        assert_workers_read_the_same(recipe, 1, 2, workers, 1)


def test_where_the_sets_lie_together_is_drawn_evenly():
    recipe = data.mix({A: 1, numbers(100, 60): 1}, examples_per_epoch=100)
    of_b = np.mean([np.array(order_of(recipe, epoch)) >= 100 for epoch in range(100)], axis=0)
    # a hundred draws without replacement of 50 from 100, at each of 100 places: 6 standard deviations
    assert np.abs(of_b - 0.5).max() < 6 * 0.05


@pytest.mark.parametrize(
    ("sets", "options", "words"),
    [
        ({"a": 1}, {}, "dict of recipes"),
        ({}, {}, "0 sets"),
        ({A: 1, B: 0}, {}, "above 0, found 0"),
        ({A: 1, B: float("nan")}, {}, "found nan"),
        ({A: 1e6, B: 1}, {}, "without a share .* 74"),
        ({A: 1, numbers(0, 60, one_hot=True): 1}, {}, "one form.*int64.*float32"),
        ({A: 1, data.batches(A.split, global_batch_size=20): 1}, {}, "found 20 and 10"),
        ({A: 1, B: 1}, {"whole_batches": True}, "14 examples.*drop_remainder"),
        ({A: 1}, {"examples_per_epoch": 9, "drop_remainder": True}, "no batch would be left"),
        ({A: 1}, {"seed": -1}, "seed"),
        ({A: 1}, {"examples_per_epoch": 0}, "examples_per_epoch"),
    ],
)
def test_what_does_not_fit_is_refused(sets, options, words):
    with pytest.raises(RecipeError, match=words):
        data.mix(sets, **options)
