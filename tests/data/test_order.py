"""The order of the examples of an epoch."""

from __future__ import annotations

import numpy as np

from mirrorkit.data.order import order_of


def test_an_order_depends_on_its_key_alone():
    assert order_of(5, shuffle=False, key=[3, 1]).tolist() == [0, 1, 2, 3, 4]
    shuffled = order_of(50, shuffle=True, key=[3, 1])
    np.testing.assert_array_equal(shuffled, np.random.default_rng([3, 1]).permutation(50))
    assert shuffled.tolist() != order_of(50, shuffle=True, key=[3, 2]).tolist()
    assert shuffled.dtype == order_of(50, shuffle=False, key=[3, 1]).dtype == np.int64
