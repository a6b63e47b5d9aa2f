"""A share without examples adds zeros, and the model is not run on it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from mirrorkit.train.step.empty_shares import has_no_rows, of_size, unless_empty


@pytest.mark.parametrize(("size", "empty"), [(0, True), (3, False), (None, False)])
def test_whether_it_is_known_beforehand(size: int | None, empty: bool) -> None:
    share = tf.TensorSpec([size, 2]), tf.TensorSpec([size], tf.int64)
    assert has_no_rows(share) is empty
    for other in (None, 4):
        assert of_size(share, other) == (tf.TensorSpec([other, 2]), tf.TensorSpec([other], tf.int64))


def test_zeros_stand_for_what_an_empty_share_adds() -> None:
    traced: list[Any] = []

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)], autograph=False)
    def sums(batch: Any) -> Any:
        def full() -> Any:
            traced.append(batch.shape)
            return {"sum": tf.reduce_sum(batch, 0), "none": None, "mean": [tf.reduce_mean(batch)]}

        return unless_empty(batch, full)

    some, nothing = sums(tf.ones([3, 2])), sums(tf.ones([0, 2]))
    assert some["none"] is nothing["none"] is None
    assert (some["sum"].numpy().tolist(), float(some["mean"][0])) == ([3.0, 3.0], 1.0)
    assert (nothing["sum"].numpy().tolist(), float(nothing["mean"][0])) == ([0.0, 0.0], 0.0)
    assert len(traced) == 1
