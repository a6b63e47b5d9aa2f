"""The order of the examples of an epoch."""

from __future__ import annotations

import numpy as np

from mirrorkit import data
from mirrorkit.data.order import Numbered, order_of


def test_an_order_depends_on_its_key_alone():
    assert order_of(5, shuffle=False, key=[3, 1]).tolist() == [0, 1, 2, 3, 4]
    shuffled = order_of(50, shuffle=True, key=[3, 1])
    np.testing.assert_array_equal(shuffled, np.random.default_rng([3, 1]).permutation(50))
    assert shuffled.tolist() != order_of(50, shuffle=True, key=[3, 2]).tolist()
    assert shuffled.dtype == order_of(50, shuffle=False, key=[3, 1]).dtype == np.int64


def test_recipes_whose_examples_have_numbers_have_one_order():
    assert all(issubclass(make, Numbered) for make in (data.batches, data.resident, data.source, data.image_folder))
    recipe = data.source(np.arange(50), global_batch_size=8, shuffle=True, seed=3)
    np.testing.assert_array_equal(recipe.order(1), order_of(50, shuffle=True, key=[3, 1]))
    np.testing.assert_array_equal(recipe.as_written().order(1), np.arange(50))
