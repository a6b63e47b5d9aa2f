"""Several sets in one recipe, each with a share of every epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import is_number, whole_number
from mirrorkit.data.distribution import untuned
from mirrorkit.data.recipe import Recipe, check_fields, fitting_batch_size
from mirrorkit.errors import RecipeError


@dataclass(frozen=True, eq=False)
class Mix(Recipe):
    """A recipe for the examples of several sets, each of which gives a share of every epoch.

    `mk.data.mix` is this class. Its arguments are the recipe's attributes.

    ```python
    books = mk.data.records("books/", global_batch_size=256, shuffle=True)
    code = mk.data.records("code/", global_batch_size=256, shuffle=True)
    train = mk.data.mix({books: 3, code: 1}, examples_per_epoch=1_000_000)
    ```

    Of an epoch here three quarters are books and one quarter is code, to one example. They come in an order drawn for
    the epoch, a pure function of (seed, epoch). Each set gives its examples in its own order and with its own `map` and
    `augment`; it goes on in the next epoch where this one stopped, so that it gives each example once before it begins
    again in the order of its own next epoch. It is like `tf.data.Dataset.sample_from_datasets` of repeated datasets,
    but the same on any number of workers and after a restart.

    Args:
        sets: a dict {recipe: weight}. The recipes have one `global_batch_size` and one form of batches. Weights are
            numbers above 0, which need not add up to 1.
        examples_per_epoch: how many examples an epoch has; as many as all sets together by default.
        whole_batches: let all examples of a batch be of one set; by default sets are mixed within a batch. Then each
            worker reads only its own rows, otherwise it reads whole batches.
        seed: fixes the order in which the sets come.
        drop_remainder: leave out the last batch when it is smaller; with `whole_batches` there is none.

    Raises:
        RecipeError: sets that are no recipes, or differ in the form of their batches or in their size; a weight that is
            not above 0, or too small to give one example in an epoch; with `whole_batches` a set whose last batch is
            smaller; with `drop_remainder` an epoch smaller than a batch.
    """

    sets: Mapping[Recipe, float]
    _: KW_ONLY
    examples_per_epoch: int | None = None
    whole_batches: bool = False
    seed: int = 0
    drop_remainder: bool = False
    global_batch_size: int = field(init=False)
    _draws: np.ndarray = field(init=False, repr=False)  # of each set in an epoch: examples, or whole batches

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_fields(self)
        whole_number("seed", self.seed, RecipeError, least=0)
        sets = self.sets
        if not all(isinstance(one, Recipe) for one in sets):
            raise RecipeError(
                f"mix needs a dict of recipes and their weights, {{mk.data.batches(...): 3, ...}}; found {sets!r}."
            )
        if not sets:
            raise RecipeError("mix was given 0 sets; give it one or more.")
        # of a set that is smaller than its batches, what was asked for
        name = "global_batch_size" if self.whole_batches else "asked_batch_size"
        size = max(getattr(one, name, one.global_batch_size) for one in sets)
        self._set(sets=dict(sets), global_batch_size=size)
        for one in sets:
            self._require_fitting(one)
        count = self.examples_per_epoch
        count = sum(one.num_examples for one in sets) if count is None else count
        count = whole_number("examples_per_epoch", count, RecipeError)
        if not self.whole_batches:
            fitting = fitting_batch_size(size, count, drop_remainder=self.drop_remainder)
            self._set(asked_batch_size=size, global_batch_size=fitting)
        self._set(_draws=_shares(list(sets.values()), count // self._unit))
        reads_own_rows = self.whole_batches and all(one.reads_own_rows for one in sets)
        self._set(
            reads_own_rows=reads_own_rows,
            order_depends_on_workers=reads_own_rows and any(one.order_depends_on_workers for one in sets),
            order_version=sum(one.order_version for one in sets),
        )

    @property
    def num_examples(self) -> int:
        """The number of examples in an epoch."""
        return int(self._draws.sum()) * self._unit

    @property
    def order_in_words(self) -> str:
        """See `Recipe`."""
        sets = zip(self._draws.tolist(), self.sets, strict=True)
        told = [f"{draws} x {self._unit} of {one.num_examples} ({one.order_in_words})" for draws, one in sets]
        return f"mix seed={self.seed}: {', '.join(told)}"

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`; see `Recipe.dataset`.

        Raises:
            RecipeError: a negative epoch, or a start outside 0 .. steps_per_epoch; rows of a worker without
                `whole_batches`.
        """
        self._check_position(epoch, start)
        if input_context is not None and not self.reads_own_rows:
            raise RecipeError("mix reads the rows of a worker alone only with whole_batches=True; ask for all of them.")
        # First which set gives each example of the epoch, or each whole batch; then how many each set has given before.
        size, number = self.global_batch_size, len(self.sets)
        whose = np.random.default_rng((self.seed, epoch)).permutation(np.repeat(np.arange(number), self._draws))
        passed, whose = np.split(whose, [start * size // self._unit])
        given = epoch * self._draws + np.bincount(passed, minlength=number)
        left = np.bincount(whose, minlength=number)
        each = zip(self.sets, given.tolist(), left.tolist(), strict=True)
        parts = [self._part_of(one, before, after, input_context) for one, before, after in each]
        mixed = tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.from_tensor_slices(whose))
        if not self.whole_batches:
            mixed = mixed.batch(size, drop_remainder=self.drop_remainder or self.num_examples % size == 0)
        counted = mixed.apply(tf.data.experimental.assert_cardinality(self.steps_per_epoch - start))
        return untuned(counted.prefetch(tf.data.AUTOTUNE))

    def _part_of(
        self, one: Recipe, given: int, left: int, context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Return `left` examples of a set, or batches, after the `given` ones, counted over all its epochs."""
        of_epoch, first = sum(one.batch_sizes()), given * self._unit
        epoch, place = divmod(first, of_epoch)
        start, passed = divmod(place, one.global_batch_size)  # rows of the first batch
        end = max(epoch + 1, -(-(first + left * self._unit) // of_epoch))
        made = one.joined(range(epoch, end), start, context)
        return (made if self.whole_batches else made.unbatch().skip(passed)).take(left)

    @property
    def _unit(self) -> int:
        """How many consecutive examples are of one set."""
        return self.global_batch_size if self.whole_batches else 1

    def _require_fitting(self, one: Recipe) -> None:
        """Refuse a set whose batches do not fit those of the others."""
        first, size = next(iter(self.sets)), self.global_batch_size
        found, wanted = (_row_of(recipe.element_spec) for recipe in (one, first))
        if found != wanted:
            raise RecipeError(
                f"mix needs sets whose examples have one form; found {wanted} and {found}. Let a map= make them alike."
            )
        is_small = one.global_batch_size == one.num_examples  # all of it is one batch
        if one.global_batch_size != size and (self.whole_batches or not is_small):
            raise RecipeError(
                f"mix needs sets with one global_batch_size; found {size} and {one.global_batch_size}. Give all "
                "recipes the same."
            )
        if self.whole_batches and set(one.batch_sizes()) != {size}:
            raise RecipeError(
                f"mix(whole_batches=True) needs sets whose batches have {size} examples; one has {one.num_examples} "
                "examples, so that its last batch is smaller. Make it with drop_remainder=True."
            )


mix = Mix


def _shares(weights: Sequence[float], units: int) -> np.ndarray:
    """Return how many of so many units each weight gets: as many as its share, rounded so that none is left over."""
    for weight in weights:
        if not is_number(weight) or not 0 < weight < math.inf:
            raise RecipeError(f"The weight of a set must be a number above 0, found {weight!r}.")
    ends = np.cumsum(weights)
    found: np.ndarray = np.diff(np.rint(ends / ends[-1] * units).astype(np.int64), prepend=0)
    if not found.all():
        raise RecipeError(
            f"The weights {weights} leave a set without a share of an epoch's {units} examples or whole batches. Leave "
            "it out, give it a larger weight, or ask for a larger examples_per_epoch."
        )
    return found


def _row_of(spec: Any) -> str:
    """Return the form of an example in words."""
    return str(tf.nest.map_structure(lambda one: f"{one.dtype.name} {list(one.shape[1:])}", spec))
