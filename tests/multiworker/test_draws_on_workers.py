"""Two workers draw no random number twice, and what layers assign in predict is one state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1] / "train"))
from drawing import X, all_draws, assert_distinct, state_after

pytestmark = pytest.mark.slow


def asked(strategy: tf.distribute.Strategy) -> tuple[dict[str, Any], list[float]]:
    """All that a training, its validation, an evaluation and two predictions draw; and the layers' state."""
    return {kind: all_draws(strategy, kind) for kind in ("batches", "resident", "dataset")}, state_after(strategy)


def test_two_workers_draw_other_numbers(found):
    (first, state), second = found
    np.testing.assert_equal((first, state), second)
    for draws in first.values():
        assert_distinct(draws)
    mean = 0.0
    for batch in 2 * np.split(X[:9], [4, 8]):
        mean = 0.5 * mean + 0.5 * float(batch.mean())
    assert state == pytest.approx([mean, 6], rel=1e-5)
