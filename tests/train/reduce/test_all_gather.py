"""What `all_gather` takes, and where there is nothing to gather; the values: tests/multiworker/test_gathering.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (lambda: [tf.zeros([3]), 1.0], r"found shapes \[\(3,\), \(\)\]"),
        (lambda: [], r"found shapes \[\]"),
        (lambda: tf.zeros([2], tf.complex64), "complex64"),
    ],
    ids=["scalar", "nothing", "dtype"],
)
def test_what_cannot_be_gathered(rows: Any, match: str, strategy_of: Any) -> None:
    with pytest.raises(StepError, match=match):
        strategy_of("mirrored", 2).run(lambda: mk.train.all_gather(rows()))


def test_without_other_replicas_rows_are_all(strategy_of: Any) -> None:
    """On one device, by default, and in the scope, where models are built."""
    rows = {"a": np.arange(3.0), "b": [tf.constant([1, 2, 3])]}
    of_one = strategy_of("one_device", 1).run(lambda: mk.train.all_gather(rows))
    with strategy_of("mirrored", 2).scope():
        in_scope = mk.train.all_gather(rows)
    for found in (of_one, in_scope, mk.train.all_gather(rows)):
        tf.nest.map_structure(np.testing.assert_array_equal, found, rows)
        assert all(tf.is_tensor(part) for part in tf.nest.flatten(found))


def test_values_of_replicas_are_gathered_within_them(strategy_of: Any) -> None:
    """Eagerly too; outside, they are refused."""
    strategy = strategy_of("mirrored", 2)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.range(2 + context.replica_id_in_sync_group)
    )
    found = strategy.run(mk.train.all_gather, args=(values,))
    assert [part.numpy().tolist() for part in strategy.experimental_local_results(found)] == 2 * [[0, 1, 0, 1, 2]]
    with strategy.scope(), pytest.raises(StepError, match="outside of a replica"):
        mk.train.all_gather(values)


def test_tensors_of_other_numbers_of_rows_in_one_nest(strategy_of: Any) -> None:
    """Each has the gradient of its own rows, of unknown number: of squares of differences from all rows."""
    strategy = strategy_of("mirrored", 2)
    x = np.arange(10, dtype="float32")

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
    def gathered(few: Any, many: Any) -> Any:
        def on_replica() -> Any:
            second = tf.distribute.get_replica_context().replica_id_in_sync_group == 1
            own = [tf.boolean_mask(tf.constant(x)[: tf.size(part)], (part == 1) == second) for part in (few, many)]
            with tf.GradientTape() as tape:
                tape.watch(own)
                every = mk.train.all_gather(own)
                loss = tf.add_n([tf.reduce_sum((a[:, None] - b[None]) ** 2) for a, b in zip(own, every, strict=True)])
            return every, tape.gradient(loss, own)

        return strategy.run(on_replica)

    every, gradients = gathered([0, 0, 1], [0, 1, 1, 1, 1])
    for size, cut, whole, parts in zip((3, 5), (2, 1), every, gradients, strict=True):
        both = strategy.experimental_local_results
        assert both(whole)[1].numpy().tolist() == x[:size].tolist()
        expected = 4 * (size * x[:size] - x[:size].sum())
        np.testing.assert_allclose(both(parts)[0], expected[:cut], rtol=1e-5)
        np.testing.assert_allclose(both(parts)[1], expected[cut:], rtol=1e-5)
