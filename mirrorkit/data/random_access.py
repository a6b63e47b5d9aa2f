"""Global batches of any object that gives its examples by number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirrorkit.arguments import whole_number
from mirrorkit.data.indexable import number_of
from mirrorkit.data.item_reader import ItemReader
from mirrorkit.data.reading import OfReader
from mirrorkit.errors import DataError, RecipeError

_THREADS = 16
_MOST = 1024  # threads or processes
_LOOKED_AT = 4  # items that are fetched twice, to see that they are the same


@dataclass(frozen=True, eq=False)
class RandomAccess(OfReader):
    """A recipe like `batches`, for any object that returns examples by index; each worker fetches its own.

    `mk.data.source` is this class.

    ```python
    train = mk.data.source(
        datasets.load_dataset("mnist", split="train"),                         # Hugging Face
        global_batch_size=256, shuffle=True, map=lambda item: (item["image"], item["label"]),
    )
    train = mk.data.source((file["images"], file["labels"]), global_batch_size=256, shuffle=True)    # HDF5, Zarr
    train = mk.data.source(MyImages("photos.h5"), global_batch_size=256, shuffle=True, processes=4)   # your own class
    ```

    The batches are those of `batches` for the same rows and seed, in the same order. Memory holds the indices of the
    examples and a few batches.

    An item is an array, a number, text, bytes, anything that `np.asarray` takes (a PIL image), or a dict or tuple of
    them. A tuple of one to three is `(x,)`, `(x, y)` or `(x, y, sample_weight)`; anything else is x alone, and `map`
    may make labels from it. Integer labels become int64 and weights float32, as in `mk.data.arrays`. All items have the
    dtypes and shapes of item 0. An item must be the same at each fetch: random changes belong in `augment`.

    Args:
        items: an object with `__len__` and `__getitem__`: TFDS's `data_source`, a random-access source or `MapDataset`
            of Grain, a `Dataset` of Hugging Face, a map-style dataset as for PyTorch, a list, your own class. If it has
            `__getitems__`, which takes a list of indices, that is called. Or an array (NumPy's, memory-mapped ones,
            HDF5's, Zarr's), or a tuple or dict of arrays with a row for each example, such as `(images, labels)`.
        global_batch_size, shuffle, seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`.
        weights, replacement, examples_per_epoch: as in `batches`, but weights of examples alone: the labels are not
            known before the items are fetched.
        num_classes: the number of classes; `one_hot` needs it. Labels are checked against it as they are fetched.
        threads: how many threads fetch examples, 16 by default, at most 1024. They help if items wait for a disk or a
            network, or are decoded in C. Use 1 for an object that must not be used by several threads at once.
        processes: fetch in this many processes instead, for a `__getitem__` that computes in Python. The object is
            pickled; the processes start with every iterator and end with it.

    Raises:
        RecipeError: what `batches` refuses; an object without `__len__` or `__getitem__`, or one that has its own
            recipe in mirrorkit; with `processes`, one that cannot be pickled.
        DataError: no examples, arrays of different lengths, an item that is no array or changes each time. An item that
            cannot be fetched or has another form is named when it is read: by this error in a `Loop`, by TensorFlow's
            in a custom training loop.
    """

    items: Any = field(repr=False)  # a list may be a long one
    num_classes: int | None = field(default=None, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)
    processes: int | None = field(default=None, kw_only=True)
    _reader: ItemReader = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Look at the first items, and check the arguments."""
        for name, most in {"num_classes": 2**31, "threads": _MOST, "processes": _MOST}.items():
            value = getattr(self, name)
            self._set(**{name: None if value is None else whole_number(name, value, RecipeError, most=most)})
        if self.threads and self.processes:
            raise RecipeError(
                f"threads={self.threads} and processes={self.processes} were both asked for. Each process fetches one "
                "example at a time; leave out threads."
            )
        reader = ItemReader(self.items, self.num_classes, self.threads or _THREADS, self.processes)
        self._set(_reader=reader)
        labelled = reader.has_classes or (reader.unlabelled and self.map is not None)
        self._settle(reader.number, reader.shape, has_classes=labelled)
        self._require_same_items()

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        numbers = self.order(epoch)[start * self.global_batch_size :][:_LOOKED_AT]
        return f"{super().identity(epoch, start)} {self._reader.print_of(numbers)}"

    def _check_number(self) -> None:
        if (now := number_of(self.items)) != self._size:
            raise DataError(
                f"{type(self.items).__name__} held {self._size} examples when the recipe was made, and holds {now} "
                "now. Make a new recipe of it."
            )

    def _first_examples(self, number: int) -> tuple[Any, ...]:
        return self._reader.read(np.arange(min(number, self._size)))

    def _require_same_items(self) -> None:
        """Refuse items that are drawn: a resumed run, or another worker, would get others."""
        for number in range(min(_LOOKED_AT, self._size)):
            one = np.array([number])
            if self._reader.print_of(one) != self._reader.print_of(one):
                raise DataError(
                    f"Item {number} of {type(self.items).__name__} is different each time it is fetched. A resumed run "
                    "would train on other examples. Leave random changes to augment= (your own function is (images, "
                    "seed) -> images), or draw from a generator that is seeded with the item's index."
                )


source = RandomAccess
