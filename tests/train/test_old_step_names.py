"""What only Loop used of a Step goes on working for a release, and warns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import numbers_of
from training_helpers import line_net

import mirrorkit as mk

NAMES = ["prepare", "first_batch_check", "modes", "loss_index", "clock", "accumulators", "totals_size"]


@pytest.mark.parametrize("name", [*NAMES, "train", "train_parts", "add", "finish"])
def test_old_names_of_a_step_warn(name: str, make_loop: Any, numbers: Any) -> None:
    step = make_loop(("mirrored", 2), line_net).step
    step.for_loop(step.strategy).prepare(numbers)
    with pytest.warns(DeprecationWarning, match=rf"Step\.{name} is deprecated"):
        getattr(step, name)


def test_other_names_are_no_attributes(make_loop: Any) -> None:
    with pytest.raises(AttributeError, match="'Step' object has no attribute 'trian'"):
        _ = make_loop(("one_device", 1), line_net).step.trian


@pytest.mark.filterwarnings("ignore:Step:DeprecationWarning")
def test_the_old_ways_to_train_are_those_of_now(make_loop: Any, numbers: Any) -> None:
    batch = tuple(map(tf.constant, numbers))
    half = [tuple(part[rows] for part in batch) for rows in (slice(0, 30), slice(30, 60))]

    def added(step: Any) -> Any:
        for part, rows in enumerate(half):
            step.add(rows, part)
        return step.finish()

    results = []
    for accumulate, run in ((1, lambda s: s.train(batch)), (2, added), (2, lambda s: s.train_parts(half))):
        step = make_loop(("mirrored", 2), line_net, accumulate=accumulate).step
        step.prepare(batch)
        totals = tf.function(lambda run=run, step=step: run(step), autograph=False)()
        assert totals.shape == (step.totals_size,)
        results.append(numbers_of(step.model.trainable_variables))
    for one in results[1:]:
        assert all(map(np.allclose, one, results[0]))


def test_the_table_of_the_parameter_servers_has_moved() -> None:
    with pytest.warns(DeprecationWarning, match=r"use mirrorkit\.parallel\.PartitionedTable"):
        assert mk.train.PartitionedTable is mk.parallel.PartitionedTable
