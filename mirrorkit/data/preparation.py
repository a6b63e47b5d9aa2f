"""What every recipe of mirrorkit does to the examples of a batch after gathering them, and the arguments for it.

The way of a batch: each kind of recipe gathers its examples (from memory, from files, on the devices); then
`PreparedRecipe.finish` runs `map`, `augment` and one-hot encoding, in this order, wherever the batch is made.
"""

from __future__ import annotations

import abc
import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import Self

from mirrorkit.arguments import whole_number
from mirrorkit.data.augment import Augmentation, RowsToMake, apply, flip, rows_to_make
from mirrorkit.data.map_check import ROWS, require_by_row
from mirrorkit.data.nests import kind, without_none
from mirrorkit.data.order import order_of
from mirrorkit.data.recipe import Recipe, check_fields, fitting_batch_size
from mirrorkit.data.weights import drawn, example_weights
from mirrorkit.data.worker_rows import own_rows
from mirrorkit.errors import RecipeError

MapFunction = Callable[..., Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRecipe(Recipe):
    """The arguments that all these recipes share, documented at `Batches`, and what they do.

    Equality is identity: compiled functions are kept by the recipe that they were compiled for. A subclass calls
    `_settle` in its `__post_init__`, and has `num_classes`, `_first_examples` and `_dataset`: for a set in memory
    `OfSplit` has them, for what a reader reads `OfReader`.
    """

    reads_own_rows = True

    global_batch_size: int
    shuffle: bool = False
    weights: Any = field(default=None, repr=False)
    replacement: bool = True
    examples_per_epoch: int | None = None
    seed: int = 0
    augment: Sequence[Augmentation] | None = None
    map: MapFunction | None = None
    one_hot: bool = False
    drop_remainder: bool = False
    prefetch: int = tf.data.AUTOTUNE
    _num_examples: int = field(init=False, repr=False)
    _size: int = field(init=False, repr=False)  # the number of examples in the set
    asked_batch_size: int = field(init=False, repr=False)  # `global_batch_size` as it was asked for
    _checked: list[MapFunction] = field(init=False, repr=False, default_factory=list)  # `map`, after a look at it

    @property
    def num_examples(self) -> int:
        """The number of examples in the set, or drawn for an epoch (with `drop_remainder`, it may use fewer)."""
        return self._num_examples

    @property
    @abc.abstractmethod
    def num_classes(self) -> int | None:
        """The number of classes; None where the labels are not classes, or their number is unknown."""

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`, without making those before; see `Recipe.dataset`.

        Raises:
            RecipeError: a negative epoch, or a start outside 0 .. steps_per_epoch.
            DataError: data that has another number of examples than the recipe.
        """
        self._check_position(epoch, start)
        self._check_number()
        self._check_map()
        return self._dataset(epoch, start, input_context)

    def _check_number(self) -> None:
        """Refuse data that has another number of examples than the recipe, where that can be seen."""

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the examples in the order of `epoch`, counted as they lie, int64 [N]."""
        count = self.num_examples
        if self.weights is None:
            return order_of(count, shuffle=self.shuffle, key=[self.seed, epoch])
        if not self.shuffle:
            return np.arange(count) % self._size
        rng = np.random.default_rng((self.seed, epoch))
        return drawn(self.weights, count, replacement=self.replacement, rng=rng)

    @property
    def weights_digest(self) -> str | None:
        """What tells the weights from others; None where there are none."""
        return None if self.weights is None else f"{zlib.crc32(self.weights, self.replacement):08x}"

    @property
    def order_in_words(self) -> str:
        """See `Recipe`."""
        told = "shuffle" if self.shuffle else "no shuffle"
        for name in ("seed", "shuffle_buffer", "weights_digest") if self.shuffle else ():
            if (value := getattr(self, name, None)) is not None:
                told += f" {name}={value}"
        return told if self.layout is None else f"{told} files={zlib.crc32(repr(self.layout).encode()):08x}"

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers, so that they read the same batches from the `start`-th on."""
        numbers = (self.num_examples, self.global_batch_size, self.shuffle, self.seed, epoch, start)
        return f"{type(self).__name__}{numbers} {self.weights_digest}"

    @property
    def layout(self) -> object:
        """What the order of the examples follows beside the seed: how they lie in files; None where it is nothing."""
        return None

    def as_written(self) -> Self:
        """Return the same recipe unshuffled: its examples come in the order in which they lie in memory or on disk."""
        return self._with(shuffle=False)

    def finish(self, element: tuple[Any, ...], *, epoch: Any, step: tf.Tensor, rows: RowsToMake | None = None) -> Any:
        """Run `map`, `augment` and one-hot encoding on gathered examples: `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

        They are those of the whole batch with the number `step`, or with `rows` (see `rows_to_make`) those that must be
        made, of which the wanted ones are returned: the same, bit for bit, as in the whole batch.
        """
        x, *others = self._mapped(*element)
        if self.augment:
            parts = tf.nest.flatten(x)
            place = _place_of_images(x) if tf.nest.is_nested(x) else 0
            parts[place] = apply(self.augment, parts[place], seed=self.seed, epoch=epoch, step=step, rows=rows)
            x = tf.nest.pack_sequence_as(x, parts)
        if self.one_hot:
            if not others:
                raise RecipeError("one_hot=True was asked for, but the examples have no labels. Leave it out.")
            hot = tf.one_hot(others[0], self.num_classes, dtype=tf.float32)
            others[0] = self._checked_classes(hot, others[0])
        finished = (x, *others)
        return finished if rows is None else rows.wanted(finished)

    def _checked_classes(self, hot: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return one-hot rows after a check: of a label outside the classes, which `map` may make, one is zeros."""
        known = tf.reduce_any(hot > 0, axis=-1)
        words = (
            f"one_hot=True needs labels from 0 on, below {self.num_classes}; the least and the largest of a batch are"
        )
        found = [words, tf.reduce_min(labels), tf.reduce_max(labels)]
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(known), found)]):
            return tf.identity(hot)

    def _check_map(self) -> None:
        """Refuse a `map` that does not treat each example independently; looked at once for a recipe and its copies."""
        if self.map is None or self._checked:
            return
        with tf.init_scope(), tf.device("CPU:0"):
            try:
                first = self._first_examples(min(ROWS, self.global_batch_size))
            except tf.errors.OpError:
                return  # a damaged file, which is named when it is read
            require_by_row(self.map, first)
        self._checked.append(self.map)

    @abc.abstractmethod
    def _first_examples(self, number: int) -> tuple[Any, ...]:
        """Return the first examples of the set as they lie, before `map`: arrays, or nests of them."""

    def _mapped(self, *element: Any) -> tuple[Any, ...]:
        """Run `map`, if there is one, and refuse what are no examples; those without labels may get some."""
        made = without_none(element if self.map is None else self.map(*element))
        unlabelled = len(element) == 1
        if unlabelled and not isinstance(made, (tuple, list)):
            made = (made,)
        if not isinstance(made, (tuple, list)) or not (1 if unlabelled else 2) <= len(made) <= 3:
            raise RecipeError(
                f"map must return {'x, ' * unlabelled}(x, y) or (x, y, sample_weight), as it takes them; it returned "
                f"{made!r}."
            )
        return tuple(made)

    def rows_of(self, step: tf.Tensor, input_context: tf.distribute.InputContext | None) -> RowsToMake:
        """Return which rows of a batch a worker must gather: Python ints where they are the same for all batches."""
        usual, last = self._rows_of_both(input_context)
        whole = self.num_examples // self.global_batch_size
        if whole == self.steps_per_epoch:
            return usual
        return RowsToMake(*(tf.where(step < whole, *map(np.int64, two)) for two in zip(usual, last, strict=True)))

    def _rows_of_both(self, input_context: tf.distribute.InputContext | None) -> tuple[RowsToMake, RowsToMake]:
        """Return the rows that a worker must gather of a whole batch, and of the last, smaller one if there is any."""
        sizes = (self.global_batch_size, 0 if self.drop_remainder else self.num_examples % self.global_batch_size)
        usual, last = (self.rows_to_make(*own_rows(size, input_context), size) for size in sizes)
        return usual, last

    def rows_to_make(self, first: Any, end: Any, size: Any) -> RowsToMake:
        """Return which rows of a batch of `size` examples must be gathered to get those from `first` to `end`."""
        return rows_to_make(self.augment or (), first, end, size)

    @abc.abstractmethod
    def _dataset(self, epoch: int, start: int, context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        """Return what `dataset` returns, after its checks."""

    def _element(self, *read: Any) -> tuple[Any, ...]:
        """Return `(x,)`, `(x, y)` or `(x, y, sample_weight)` of what was read for a batch."""
        return read

    def _made(self, gathered: tf.data.Dataset, batch: MapFunction) -> tf.data.Dataset:
        """Make batches of what was gathered for them, several at the same time, in their order."""
        if self.map is None and all(one.__module__ == flip.__module__ for one in self.augment or ()):
            # calls no function of the user's: AutoGraph need not rewrite it, which takes 0.3 s
            batch = tf.autograph.experimental.do_not_convert(batch)
        return gathered.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(self.prefetch)

    def _settle(
        self,
        num_examples: int,
        shape: Sequence[int | None] | None,
        *,
        has_classes: bool,
        labels: Any = None,
    ) -> None:
        """Check the shared arguments, and set them in their final form.

        The shape of the inputs is None where it is unknown, or there are several. `has_classes` says whether labels may
        be classes. The labels are None where they are not in memory. A batch is no larger than an epoch.
        """
        check_fields(self)
        if self.one_hot and (not has_classes or self.num_classes is None):
            raise RecipeError(
                "one_hot=True needs class indices (integers), one for each example, and how many classes there are: "
                "pass num_classes= with the labels."
            )
        size = whole_number("global_batch_size", self.global_batch_size, RecipeError)
        seed = whole_number("seed", self.seed, RecipeError, least=0)
        if num_examples < 1:
            raise RecipeError("The set holds no example; a recipe needs at least one. Look at its source.")
        count = self._examples_of_an_epoch(num_examples, labels)
        _check_augment(self.augment, shape if self.map is None else None)
        self._set(
            _num_examples=count,
            asked_batch_size=size,
            global_batch_size=fitting_batch_size(size, count, drop_remainder=self.drop_remainder),
            seed=seed,
            prefetch=int(self.prefetch),
            augment=tuple(self.augment or ()),
        )

    def _examples_of_an_epoch(self, number: int, labels: Any) -> int:
        """Return how many examples an epoch has, of the `number` in the set; check how they are to be drawn."""
        self._set(_size=number)
        if self.weights is None:
            if self.examples_per_epoch is not None or self.replacement is not True:
                raise RecipeError("examples_per_epoch and replacement go with weights: give them, or leave these out.")
            return number
        count = number if self.examples_per_epoch is None else self.examples_per_epoch
        count = whole_number("examples_per_epoch", count, RecipeError)
        weights = example_weights(self.weights, labels, number)
        most = np.count_nonzero(weights)
        if not self.replacement and count > most:
            raise RecipeError(
                f"{count} examples of an epoch were asked for without replacement, but only {most} have a weight above "
                "0. Ask for fewer by examples_per_epoch, or draw with replacement."
            )
        self._set(weights=weights, shuffle=True)
        return count

    def _with(self, **values: Any) -> Self:
        """Return a copy with other values of attributes; `dataclasses.replace` would look at the data again."""
        other = copy.copy(self)
        vars(other).update(values)
        return other


def _check_augment(augment: Sequence[Augmentation] | None, shape: Sequence[int | None] | None) -> None:
    if augment is None:
        return
    if callable(augment) or not all(callable(one) for one in augment):
        raise RecipeError(
            f"augment must be a list of augmentations, such as [mk.data.augment.flip()]; found {augment!r}."
        )
    if augment and shape is not None and len(shape) != 4:
        raise RecipeError(
            f"augment works on images [N, H, W, C]; found shape {list(shape)}. Use map= for anything else."
        )


def _place_of_images(x: Any) -> int:
    """Return which one of several inputs is images."""
    found = [place for place, part in enumerate(tf.nest.flatten(x)) if part.shape.rank == 4]
    if len(found) != 1:
        raise RecipeError(
            f"augment works on one input of images [N, H, W, C]; {kind(x)} of inputs holds {len(found)} of that rank. "
            "Leave it out: put layers such as keras.layers.RandomFlip into the model, or change the inputs in map=."
        )
    return found[0]
