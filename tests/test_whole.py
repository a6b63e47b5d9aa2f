from __future__ import annotations

import numpy as np
import pytest

from mirrorkit.whole import is_whole


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(3)])
def test_whole_numbers(value):
    assert is_whole(value)


@pytest.mark.parametrize("value", [0, -1, np.int64(0), True, np.bool_(True), 1.0, np.float32(2), "1", None, [1]])
def test_what_is_none_from_one_on(value):
    assert not is_whole(value)


def test_the_least_one_can_be_set():
    assert is_whole(0, 0)
    assert not is_whole(-1, 0)
