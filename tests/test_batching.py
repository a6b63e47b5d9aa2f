from __future__ import annotations

import math
import warnings

import pytest
import tensorflow as tf

from mirrorkit import batching
from mirrorkit.errors import StepError

SIZES = [(16, 8, 2), (10, 8, 4), (3, 3, 4)]  # examples, batch, replicas


@pytest.mark.parametrize(("examples", "batch", "replicas"), SIZES)
def test_per_replica_sizes_are_what_tensorflow_does(strategy_of, examples, batch, replicas):
    strategy = strategy_of("mirrored", replicas)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(examples).batch(batch))
    seen = [tuple(int(share.shape[0]) for share in strategy.experimental_local_results(x)) for x in dataset]
    sizes = [min(batch, examples - start) for start in range(0, examples, batch)]
    assert seen == [batching.per_replica_sizes(size, replicas) for size in sizes]


def test_global_batch_size():
    assert batching.global_batch_size(64, replicas=4) == 256
    assert batching.global_batch_size(64, replicas=4, accumulate=3) == 768


def test_learning_rate_rules():
    assert batching.scale_learning_rate(0.1, global_batch_size=1024, base_batch_size=256) == pytest.approx(0.4)
    square_root = batching.scale_learning_rate(0.1, global_batch_size=64, base_batch_size=256, rule="sqrt")
    assert square_root == pytest.approx(0.05)


def test_an_equal_split_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batching.check_split(256, 4)


def test_an_unequal_split_warns_once_with_the_nearest_sizes():
    batching._warn_of_shares.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batching.check_split(250, 4)
        batching.check_split(250, 4)
        batching.check_split(3, 4)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert "63, 63, 63, 61" in messages[0]
    assert "Shared equally: 248 or 252." in messages[0]
    assert "Shared equally: 4." in messages[1]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "8", None])
def test_numbers_that_are_not_positive_and_whole_are_named(bad):
    with pytest.raises(StepError, match="global_batch_size must be"):
        batching.per_replica_sizes(bad, 2)
    with pytest.raises(StepError, match="replicas must be"):
        batching.check_split(8, bad)
    with pytest.raises(StepError, match="accumulate must be"):
        batching.global_batch_size(8, replicas=2, accumulate=bad)


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
def test_a_learning_rate_that_is_not_positive(bad):
    with pytest.raises(StepError, match="learning_rate"):
        batching.scale_learning_rate(bad, global_batch_size=8, base_batch_size=4)


def test_an_unknown_rule_names_the_known_ones():
    with pytest.raises(StepError, match="'linear' and 'sqrt'"):
        batching.scale_learning_rate(0.1, global_batch_size=8, base_batch_size=4, rule="cubic")
