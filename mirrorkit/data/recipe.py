"""What every source of batches has in common, so that any of them can be used in place of another."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from mirrorkit.arguments import require_kinds, whole_number
from mirrorkit.errors import RecipeError


def fitting_batch_size(size: int, count: int, *, drop_remainder: bool) -> int:
    """Return the size of the batches of an epoch of so many examples: no larger than it.

    Raises:
        RecipeError: no batch would be left.
    """
    if drop_remainder and size > count:
        raise RecipeError(
            f"global_batch_size={size} and drop_remainder=True were asked for, but an epoch has {count} examples: "
            f"no batch would be left. Ask for at most {count}, or leave drop_remainder out."
        )
    return min(size, count)


def check_fields(recipe: Any) -> None:
    """Refuse arguments of a recipe that are not of the kinds of their annotations.

    Raises:
        RecipeError: one is not.
    """
    kinds = {field.name: field.type for field in dataclasses.fields(recipe) if field.init}
    require_kinds(kinds, {name: getattr(recipe, name) for name in kinds}, RecipeError)


class Recipe(abc.ABC):
    """Makes the global batches of any epoch, from any step on. It keeps no position: equal calls give equal batches.

    ```python
    train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True)   # or resident, records, parquet, ...
    print(isinstance(train, mk.data.Recipe), train.steps_per_epoch, list(train.batch_sizes()))  # True 3 [100, 100, 56]
    for x, y in train.dataset(epoch=2, start=1):
        print(x.shape)  # (56, 28, 28, 1)
    ```

    The order of the examples is a pure function of (seed, epoch, position). Subclasses set `global_batch_size` and
    `drop_remainder`, and define `num_examples` and `dataset`; if `dataset` takes an `input_context`, they set
    `reads_own_rows`.

    Attributes:
        reads_own_rows: whether each worker reads only its own rows. Otherwise it reads whole global batches, and its
            replicas cut out their rows.
        order_depends_on_workers: whether the global batches depend on the number of workers. An epoch must then end
            with as many workers as it began with.
        order_version: changes when a release of mirrorkit changes the order of examples in an epoch.
    """

    global_batch_size: int
    drop_remainder: bool
    reads_own_rows: bool = False
    order_depends_on_workers: bool = False
    order_version: int = 1

    @property
    @abc.abstractmethod
    def num_examples(self) -> int:
        """The number of examples in the set (with `drop_remainder`, an epoch may use fewer)."""

    @abc.abstractmethod
    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`: `(x, y)`, `(x, y, sample_weight)` or `(x,)`.

        With `input_context`, each batch has only the rows that this worker's replicas train on: consecutive rows, in
        the order of the replicas. It has all rows if some replica would get none.
        """

    def epochs(self, count: int, *, first: int = 0) -> tf.data.Dataset:
        """The global batches of `count` epochs in one dataset, each epoch in its own order; for Keras's `fit`.

        ```python
        model.fit(train.epochs(5), epochs=5, steps_per_epoch=train.steps_per_epoch)
        ```

        Without `steps_per_epoch`, `fit` takes all of them as one epoch. With `steps_per_execution=k` of `compile`, `k`
        must divide `steps_per_epoch`: Keras reads on to the end of a call.

        Args:
            count: how many epochs.
            first: the first of them; to continue after two of five, `epochs(3, first=2)` with `initial_epoch=2,
                epochs=5`.

        Raises:
            RecipeError: a count below 1, or a negative first epoch.
        """
        first = whole_number("first", first, RecipeError, least=0)
        return self.joined(range(first, first + whole_number("count", count, RecipeError, most=100_000)))

    def joined(
        self, epochs: range, start: int = 0, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The global batches of several epochs, of the first one from `start` on; see `dataset`."""
        own = {} if input_context is None else {"input_context": input_context}
        first, *later = epochs
        datasets = [self.dataset(first, start, **own), *(self.dataset(epoch, **own) for epoch in later)]
        return functools.reduce(tf.data.Dataset.concatenate, datasets)

    @property
    def steps_per_epoch(self) -> int:
        """The number of global batches in an epoch."""
        whole, rest = divmod(self.num_examples, self.global_batch_size)
        return whole + (rest > 0 and not self.drop_remainder)

    @property
    def order_in_words(self) -> str | None:
        """What decides which examples are in which batch, apart from their number; None where that is unknown."""
        return None

    def batch_sizes(self) -> Iterator[int]:
        """The number of examples in each global batch of an epoch."""
        for step in range(self.steps_per_epoch):
            yield min(self.global_batch_size, self.num_examples - step * self.global_batch_size)

    @functools.cached_property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch, as `tf.data.Dataset.element_spec` gives them."""
        return self.dataset().element_spec

    def _set(self, **values: Any) -> None:
        vars(self).update(values)  # a frozen dataclass refuses assignment, within __post_init__ too

    def _check_position(self, epoch: int, start: int) -> None:
        if epoch < 0 or not 0 <= start <= self.steps_per_epoch:
            raise RecipeError(
                f"dataset(epoch={epoch}, start={start}) was asked for; epoch must be at least 0 and start in "
                f"0 .. {self.steps_per_epoch} (steps_per_epoch)."
            )
