"""A recipe of the user's own data; on real workers in tests/multiworker/test_own_input.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.train.input import same_data

SIZE = 6


def numbers(shard: int, num_shards: int, epoch: int = 0, *, count: int = 24) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(100 * epoch, 100 * epoch + count).shard(num_shards, shard)
    return dataset.map(lambda i: (tf.cast(i, tf.float32)[None], i)).batch(SIZE // num_shards, drop_remainder=True)


def labels(dataset: tf.data.Dataset) -> list[list[int]]:
    return [y.numpy().tolist() for _, y in dataset]


def context(shard: int, shards: int, replicas: int | None = None) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(shards, shard, replicas or shards)


def test_one_process_reads_everything_and_workers_their_shards():
    recipe = mk.data.from_function(numbers, global_batch_size=SIZE)
    assert (recipe.steps_per_epoch, recipe.num_examples) == (4, 24)
    assert labels(recipe.dataset()) == np.arange(24).reshape(4, 6).tolist()
    assert labels(recipe.dataset(2, 3)) == [[218, 219, 220, 221, 222, 223]]
    assert labels(recipe.dataset(1, 2, input_context=context(1, 3))) == [[113, 116], [119, 122]]
    with pytest.raises(RecipeError, match=r"start in 0 \.\. 4"):
        recipe.dataset(0, 5)


def test_the_epoch_is_given_to_those_who_take_it():
    recipe = mk.data.from_function(lambda shard, num_shards: numbers(shard, num_shards, 7), global_batch_size=SIZE)
    assert labels(recipe.dataset(3))[0][0] == 700


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda *_: [1], {}, "returned list"),
        (lambda *_: numbers(0, 2), {}, "batches of 6"),
        (lambda *_: tf.data.Dataset.range(3), {}, r"\.batch\("),
        (lambda *_: numbers(0, 1).repeat(), {}, "does not know it"),
        (lambda *_: numbers(0, 1).filter(lambda *_: True), {}, "does not know it"),
        (numbers, {"steps_per_epoch": 5}, "4 batches; an epoch takes 5"),
        (numbers, {"steps_per_epoch": 0}, "steps_per_epoch .* found 0"),
        (numbers, {"global_batch_size": 0}, "global_batch_size .* found 0"),
    ],
)
def test_what_does_not_fit_is_refused(function, options, message):
    with pytest.raises(RecipeError, match=message):
        mk.data.from_function(function, **{"global_batch_size": SIZE, **options}).dataset()


def test_a_batch_that_replicas_cannot_share_is_refused_on_workers():
    recipe = mk.data.from_function(numbers, global_batch_size=SIZE)
    with pytest.raises(RecipeError, match="multiple of 4"):
        recipe.dataset(input_context=context(0, 2, 4))


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`compare((first, steps), ...)` of several workers, as the first of them sees it."""

    def compare(*seen: tuple[Any, int | None]) -> None:
        prints = [same_data._NOTHING if first is None else same_data._fingerprint([first]) for first, _ in seen]
        gathered = np.array([[mark, steps, same_data._NOTHING] for mark, (_, steps) in zip(prints, seen, strict=True)])
        monkeypatch.setattr(same_data, "addresses", lambda strategy: {f"worker {i}": "" for i in range(len(seen))})
        monkeypatch.setattr(same_data, "arrays_of_all_workers", lambda strategy, value: gathered)
        same_data.require_own_data(None, *seen[0])

    return compare


def batch(*values: int) -> Any:
    return np.array(values, np.float32), np.zeros(len(values), np.int64)


def test_shards_must_begin_with_different_batches_and_be_as_long(compare):
    compare((batch(1), 4), (batch(2), 4), (batch(3), 4))
    with pytest.raises(DataError, match="worker 0 and worker 2"):
        compare((batch(1), 4), (batch(2), 4), (batch(1), 4))
    with pytest.raises(DataError, match=r"number of batches .*worker 1"):
        compare((batch(1), 4), (batch(2), 5))
    with pytest.raises(DataError, match="worker 1 found no batch"):
        compare((batch(1), 4), (None, 4))
