"""What each kind of data answers to an `Input`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError
from mirrorkit.train.input.source import Source, source_of


class Numbers(mk.data.Recipe):
    """A user's own recipe, of which each worker reads its own rows."""

    global_batch_size, drop_remainder, reads_own_rows = 4, False, True

    @property
    def num_examples(self) -> int:
        return 10

    def dataset(self, epoch: int = 0, start: int = 0, *, input_context: Any = None) -> tf.data.Dataset:
        rows = slice(2, 4) if input_context else slice(4)
        return tf.data.Dataset.range(10).batch(4).skip(start).map(lambda batch: (batch[rows],))


def _split() -> mk.data.Split:
    return mk.data.arrays(np.arange(10.0), np.arange(10))


def test_a_recipe_of_a_users_own_is_compared_by_a_batch_that_all_workers_can_read() -> None:
    source = source_of(Numbers())
    assert type(source) is Source
    assert source.has_identity
    np.testing.assert_array_equal(source.identity(0, 1)[0], [0, 1, 2, 3])
    (first,) = next(iter(source.batches(0, 1, 5, tf.distribute.InputContext(2, 1, 2))))
    np.testing.assert_array_equal(first, [6, 7])


def test_a_dataset_tells_what_it_can() -> None:
    dataset = tf.data.Dataset.range(10).batch(4)
    source = source_of(dataset)
    assert (source.steps, source.num_examples, source.global_batch_size) == (3, None, None)
    assert (source.is_endless, source.has_known_end, source.can_be_read_twice) == (False, True, False)
    assert source.starts_over
    assert not source.has_identity
    assert source.order == "3 batches of a tf.data.Dataset"
    np.testing.assert_array_equal(next(iter(source.batches(5, 0, 2, None))), [8, 9])
    unknown = source_of(dataset.filter(lambda batch: True))
    assert (unknown.steps, unknown.is_endless, unknown.has_known_end, unknown.order) == (None, False, False, None)
    again = source_of(dataset, repeats=True)
    assert (again.steps, again.is_endless, again.has_known_end) == (None, True, True)
    assert source_of(dataset.batch(1, drop_remainder=True)).global_batch_size == 1
    assert not source_of(dataset.repeat()).starts_over


@pytest.mark.parametrize("one_hot", [False, True])
def test_labels_are_known_as_they_come(one_hot: bool) -> None:
    source = source_of(mk.data.batches(_split(), global_batch_size=5, one_hot=one_hot))
    assert (source.labels is None) == one_hot
    assert source_of(mk.data.batches(_split(), global_batch_size=5, map=lambda x, y: (x, y))).labels is None


def test_what_decides_the_order() -> None:
    for make in (mk.data.batches, mk.data.resident):
        recipe = make(_split(), global_batch_size=5, shuffle=True, seed=3)
        assert source_of(recipe).order == "shuffle seed=3"
        assert not source_of(recipe).starts_over
        assert source_of(recipe.as_written()).order == "no shuffle"


@pytest.mark.parametrize("data", [np.ones((4, 2)), [1, 2], None])
def test_what_is_no_data(data: Any) -> None:
    with pytest.raises(StepError, match=r"arrays.*mk\.data\.batches.*mk\.data\.source"):
        source_of(data)
