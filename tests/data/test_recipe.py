"""Recipe: epochs, positions and sizes, the same for every source of batches."""

from __future__ import annotations

import pytest
import tensorflow as tf
from recipe_helpers import SPLIT, assert_same, collect

from mirrorkit import data
from mirrorkit.errors import RecipeError

SMALL = SPLIT[:50]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (data.batches, {"cache": True, "map": lambda x, y: (x, y + 1)}),
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
