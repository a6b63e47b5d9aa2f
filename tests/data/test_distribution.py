"""distribute: every example reaches exactly one replica; the policy is set; nonsense is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import data
from mirrorkit.errors import RecipeError


def numbered(count: int) -> data.Split:
    return data.arrays(np.arange(count), np.arange(count) % 5)


def local(strategy: tf.distribute.Strategy, value) -> list[np.ndarray]:
    return [part.numpy() for part in strategy.experimental_local_results(value)]


# of 21 the last batch of 5 leaves replicas with unequal shares
@pytest.mark.parametrize(("autoshard", "replicas", "count"), [("auto", 1, 21), ("data", 2, 16), ("off", 4, 21)])
def test_every_example_reaches_one_replica(strategy_of, replicas, count, autoshard):
    strategy = strategy_of("mirrored", replicas)
    recipe = data.batches(numbered(count), global_batch_size=8, shuffle=True)
    steps = [local(strategy, x) for x, _ in data.distribute(recipe.dataset(1), strategy, autoshard=autoshard)]
    assert len(steps) == recipe.steps_per_epoch
    for share in steps[0]:
        assert len(share) == 8 // replicas
    order = recipe.order(1)
    for step, shares in enumerate(steps):
        np.testing.assert_array_equal(np.concatenate(shares), order[8 * step : 8 * step + 8])


@pytest.mark.parametrize("autoshard", ["auto", "file", "off"])  # with "data" each worker cuts its own rows
def test_the_policy_reaches_the_data_set(autoshard, monkeypatch):
    workers = tf.distribute.MultiWorkerMirroredStrategy
    strategy = object.__new__(workers)  # a real one needs a cluster
    seen = []
    monkeypatch.setattr(workers, "experimental_distribute_dataset", lambda self, dataset: seen.append(dataset))
    data.distribute(tf.data.Dataset.range(4).batch(2), strategy, autoshard=autoshard)
    policy = seen[0].options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy[autoshard.upper()]


def test_the_default_strategy_too_and_nonsense_is_refused(tmp_path):
    strategy = tf.distribute.get_strategy()
    got = [x.numpy() for x, _ in data.distribute(data.batches(numbered(5), global_batch_size=2), strategy)]
    np.testing.assert_array_equal(np.concatenate(got), np.arange(5))
    with pytest.raises(RecipeError, match="autoshard='batch'"):
        data.distribute(data.batches(numbered(5), global_batch_size=2), strategy, autoshard="batch")
    with pytest.raises(RecipeError, match="dataset must be a tf"):
        data.distribute([1, 2], strategy)
    files = data.records(data.write_records(numbered(24), tmp_path), global_batch_size=8).dataset()
    with pytest.raises(RecipeError, match="Give distribute the recipe"):
        data.distribute(files, strategy, autoshard="file")


def test_any_epoch_of_a_recipe_from_any_batch_on(strategy_of):
    recipe = data.batches(numbered(10), global_batch_size=4, shuffle=True, seed=1)
    strategy = strategy_of("mirrored", 2)
    found = [np.concatenate(local(strategy, x)) for x, _ in data.distribute(recipe, strategy, epoch=2, start=1)]
    for own, (x, _) in zip(found, recipe.dataset(2, 1), strict=True):
        np.testing.assert_array_equal(own, x)
    with pytest.raises(RecipeError, match="for recipes"):
        data.distribute(recipe.dataset(), strategy, epoch=1)
