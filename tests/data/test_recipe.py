"""Recipes: epochs, positions and the order; which rows a worker reads; distribute."""

from __future__ import annotations

import numpy as np
import pytest
import recipe_helpers
import tensorflow as tf
from hypothesis import given, settings, strategies as st
from recipe_helpers import SPLIT, assert_same, collect, contexts
from table_files import write_tables

from mirrorkit import batching, data
from mirrorkit.data import own_rows
from mirrorkit.data.order import order_of
from mirrorkit.errors import RecipeError

# --- recipe: epochs, positions and sizes, the same for every source of batches


SMALL = SPLIT[:50]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (data.batches, {"map": lambda x, y: (x, y + 1)}),
        (data.records, {"shuffle": True, "shuffle_buffer": 20, "augment": [data.augment.flip()]}),
    ],
)
def test_epochs_are_those_of_dataset_one_after_another(make, options, tmp_path):
    source = data.write_records(SMALL, tmp_path / "set", num_files=3) if make is data.records else SMALL
    recipe = make(source, global_batch_size=8, seed=3, **options)
    expected = [batch for epoch in (2, 3) for batch in collect(recipe.dataset(epoch))]
    assert_same(collect(recipe.epochs(2, first=2)), expected)


@pytest.mark.parametrize(
    ("count", "first", "found"),
    [
        (0, 0, "count .* found 0"),
        (1.5, 0, r"count .* found 1\.5"),
        (1, -1, "first .* found -1"),
    ],
)
def test_epochs_that_are_none_are_refused(count, first, found):
    with pytest.raises(RecipeError, match=found):
        data.batches(SMALL, global_batch_size=8).epochs(count, first=first)


class Countdown(data.Recipe):
    """What a user's own recipe has to define."""

    def __init__(self, num_examples: int, global_batch_size: int, drop_remainder: bool = False) -> None:
        self._num_examples = num_examples
        self.global_batch_size = global_batch_size
        self.drop_remainder = drop_remainder

    @property
    def num_examples(self) -> int:
        return self._num_examples

    def dataset(self, epoch: int = 0, start: int = 0) -> tf.data.Dataset:
        self._check_position(epoch, start)
        numbers = tf.data.Dataset.range(self.num_examples, 0, -1).batch(self.global_batch_size, self.drop_remainder)
        return numbers.map(lambda x: (x + epoch, x)).skip(start)


@pytest.mark.parametrize(("drop", "steps"), [(False, 4), (True, 3)])
def test_a_recipe_of_ones_own_has_the_rest_made_for_it(drop, steps):
    recipe = Countdown(10, 3, drop)
    assert recipe.steps_per_epoch == steps == len(collect(recipe.dataset()))
    assert [spec.dtype for spec in recipe.element_spec] == [tf.int64, tf.int64]
    firsts = [x[0] for x, _ in collect(recipe.epochs(2, first=5))]
    assert firsts == [*range(15, 15 - 3 * steps, -3), *range(16, 16 - 3 * steps, -3)]


# --- the order of the examples of an epoch


FIRST_OF_THIRTY = {  # examples, in epoch 1 of seed 5, by `order_version`
    "numbers": {1: [10, 25, 12, 21, 4, 26, 5, 2, 6, 27, 16, 29]},
    "records": {4: [1, 19, 11, 4, 17, 29, 10, 2, 7, 25, 13, 8]},
    "parquet": {2: [17, 29, 22, 23, 19, 18, 24, 25, 20, 21, 12, 26]},
}


@pytest.mark.parametrize("kind", FIRST_OF_THIRTY)
def test_an_order_changes_with_its_version_alone(kind, tmp_path):
    options = {"global_batch_size": 4, "shuffle": True, "seed": 5}
    if kind == "numbers":
        recipe = data.batches(recipe_helpers.numbered(30), **options)
    elif kind == "records":
        recipe = data.records(
            data.write_records(recipe_helpers.numbered(30), tmp_path, num_files=3), shuffle_buffer=12, **options
        )
    else:
        write_tables(tmp_path, [12, 10, 8], group=5)
        recipe = data.parquet(tmp_path, x="number", shuffle_buffer=12, **options)
    assert recipe_helpers.order_of(recipe, epoch=1)[:12] == FIRST_OF_THIRTY[kind][recipe.order_version]


def test_an_order_depends_on_its_key_alone():
    assert order_of(5, shuffle=False, key=[3, 1]).tolist() == [0, 1, 2, 3, 4]
    shuffled = order_of(50, shuffle=True, key=[3, 1])
    np.testing.assert_array_equal(shuffled, np.random.default_rng([3, 1]).permutation(50))
    assert shuffled.tolist() != order_of(50, shuffle=True, key=[3, 2]).tolist()
    assert shuffled.dtype == order_of(50, shuffle=False, key=[3, 1]).dtype == np.int64


def test_recipes_whose_examples_have_numbers_have_one_order():
    recipe = data.source(np.arange(50), global_batch_size=8, shuffle=True, seed=3)
    np.testing.assert_array_equal(recipe.order(1), order_of(50, shuffle=True, key=[3, 1]))
    np.testing.assert_array_equal(recipe.as_written().order(1), np.arange(50))


# --- which rows each worker reads; test_preparation.py has every kind of recipe on several workers


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 4))
def test_a_worker_has_the_rows_of_its_replicas(size, workers, each):
    sizes = batching.per_replica_sizes(size, workers * each)
    for worker, context in enumerate(contexts(workers, each)):
        first = sum(sizes[: worker * each])
        wanted = (first, first + sum(sizes[worker * each : (worker + 1) * each])) if min(sizes) else (0, size)
        assert own_rows(size, context) == wanted
    assert own_rows(size, None) == (0, size)


def noisy(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """An augmentation of a user's: other numbers for each image, which depend on how many it is given."""
    return tf.cast(images, tf.float32) + tf.random.stateless_uniform(tf.shape(images), seed)


@pytest.mark.slow
def test_blocks_of_a_users_augmentation_have_the_same_seeds_on_every_worker():
    rng = np.random.default_rng(0)
    split = data.arrays(rng.integers(0, 256, (100, 6, 6, 3), dtype=np.uint8), np.arange(100))
    recipe = data.batches(split, global_batch_size=50, augment=[noisy])  # blocks from rows 0, 16, 32 and 48 on
    parts = [next(iter(recipe.dataset(input_context=context)))[0] for context in contexts(3, 1)]
    whole = next(iter(recipe.dataset()))[0]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    noise = whole - split.images[:50]
    assert not np.array_equal(noise[:16], noise[16:32]), "another seed for each block"


def test_a_map_sees_the_workers_own_rows_alone():
    split = data.arrays(np.zeros([12, 4, 4, 1], np.uint8), np.arange(12))
    seen: list[np.ndarray] = []

    def note(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (y,) = tf.py_function(lambda value: seen.append(value.numpy()) or [value], [y], [y.dtype])
        return x, y

    recipe = data.batches(split, global_batch_size=6, map=note)
    recipe.dataset()  # looks at the map, once
    seen.clear()
    list(recipe.dataset(input_context=contexts(3, 1)[1]))
    assert sorted(np.concatenate(seen)) == [2, 3, 8, 9]


# --- distribute: every example reaches exactly one replica; the policy is set; nonsense is refused


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
