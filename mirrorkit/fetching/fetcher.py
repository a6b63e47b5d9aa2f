"""How a list of numbers becomes the rows of a batch: from an object that gives items by number, or from arrays."""

from __future__ import annotations

import contextlib
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mirrorkit.errors import DataError
from mirrorkit.fetching.forms import Form, Leaf, as_arrays, described, flat, form_of, mapped

_OWN = str(Path(__file__).parents[1])
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|^<frozen ")
_ONE_FORM = (
    "All items must have the dtypes and shapes of item 0: pad, crop or cast them where the items are made, or leave "
    "some parts out."
)

Fetch = Callable[[np.ndarray], list[np.ndarray]]  # `Fetcher.arrays`


class Fetcher:
    """Fetches items of an object as arrays; every item must have the form of item 0.

    Args:
        items: an object with `__len__` and `__getitem__`; or an array (whatever has a shape, a dtype and
            `__getitem__`), or a tuple or a dict of arrays, whose rows are the items.
        form: of an item, where it is known; else item 0 is fetched.
    """

    def __init__(self, items: Any, form: Form = None) -> None:
        self.items = items
        self._arrays = list(flat(_nest_of(items))) if holds_arrays(items) else None
        self.form: Form = self._form_of(0) if form is None else form

    @contextlib.contextmanager
    def started(self, threads: int) -> Iterator[Fetch]:
        """Give a function that does what `arrays` does by several threads, until the block ends."""
        with ThreadPoolExecutor(threads, thread_name_prefix="mirrorkit-fetch") as pool, self._fetching() as fetch:

            def shared(numbers: np.ndarray) -> list[np.ndarray]:
                # Those of one thread lie together: nobody else unpacks the same part of a file.
                parts = np.array_split(numbers, min(threads, len(numbers)))
                return [np.concatenate(leaves) for leaves in zip(*pool.map(fetch, parts), strict=True)]

            yield shared

    def _fetching(self) -> contextlib.AbstractContextManager[Fetch]:
        """Give what a thread calls; the block ends before the threads are waited for."""
        return contextlib.nullcontext(self.arrays)

    def arrays(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of these items, one for each leaf of the form.

        Args:
            numbers: of the items. They ascend and none comes twice, as HDF5 wants it.

        Raises:
            DataError: an item that cannot be fetched, or has another form, by its number.
        """
        if self._arrays is not None:
            return [self._rows(array, numbers, leaf) for array, leaf in zip(self._arrays, flat(self.form), strict=True)]
        out = [np.empty([len(numbers), *leaf.shape], leaf.dtype) for leaf in flat(self.form)]
        for row, (number, item) in enumerate(self._items(numbers.tolist())):
            arrays = self._checked(number, item)
            if (found := form_of(arrays)) != self.form:
                raise DataError(
                    f"Item {number} of {_name(self.items)} is {described(found)}, and item 0 is "
                    f"{described(self.form)}. {_ONE_FORM}"
                )
            for leaf, array in zip(out, flat(arrays), strict=True):
                leaf[row] = array[()]  # of an array of objects without a shape, the object
        return out

    def _items(self, numbers: list[int]) -> Iterable[tuple[int, Any]]:
        """Yield each number with its item."""
        together = getattr(self.items, "__getitems__", None)
        if together is None:
            return ((number, self._item(number)) for number in numbers)
        fetched = self._together(numbers, lambda: list(together(numbers)))
        if len(fetched) != len(numbers):
            raise DataError(
                f"{_name(self.items)}.__getitems__ returned {len(fetched)} items for {len(numbers)} numbers. It must "
                "return a list with the item of each."
            )
        return zip(numbers, fetched, strict=True)

    def _rows(self, array: Any, numbers: np.ndarray, form: Leaf) -> np.ndarray:
        wanted = index_of(numbers)
        read = self._together(numbers.tolist(), lambda: as_arrays(np.asarray(array[wanted])))
        if (read.dtype, read.shape) != (form.dtype, (len(numbers), *form.shape)):
            raise DataError(
                f"{len(numbers)} rows of {_name(array)} are {described(form_of(read))}, where row 0 is {form}. Its "
                "dtype and shape must not change."
            )
        return read

    def _together(self, numbers: list[int], fetch: Callable[[], Any]) -> Any:
        """Fetch several items at once; where that fails, find out by which of them."""
        try:
            return fetch()
        except Exception as error:
            for number in numbers:
                self._form_of(number)
            some = ", ".join(map(str, numbers[:3]))
            raise DataError(
                f"Fetching items {some}, ... ({len(numbers)}) of {_name(self.items)} together failed, but one by one "
                f"it works: {_raised(error)}. An object with a shape and a dtype must take a list of indices, as "
                "arrays do, or have __getitems__."
            ) from error

    def _form_of(self, number: int) -> Form:
        return form_of(self._checked(number, self._item(number)))

    def _item(self, number: int) -> Any:
        """Fetch an item; an error says which one."""
        try:
            if self._arrays is None:
                return self.items[number]
            return mapped(operator.itemgetter(number), _nest_of(self.items))
        except Exception as error:
            raise DataError(f"Fetching item {number} of {_name(self.items)} failed: {_raised(error)}") from error

    def _checked(self, number: int, item: Any) -> Any:
        try:
            return as_arrays(_without_none(item))
        except (ValueError, TypeError, RecursionError) as error:  # it may hold itself
            raise DataError(f"Item {number} of {_name(self.items)} cannot be used: {error}.") from error


def index_of(numbers: np.ndarray) -> np.ndarray | slice:
    """Return numbers of rows, which ascend, as an index: of consecutive ones a slice, which copies nothing."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def holds_arrays(items: Any) -> bool:
    """Whether it is an array, or a tuple or a dict of arrays."""
    if isinstance(items, (tuple, Mapping)):
        return len(items) > 0 and all(map(holds_arrays, items.values() if isinstance(items, Mapping) else items))
    is_array = all(hasattr(items, name) for name in ("shape", "dtype", "__getitem__"))
    return is_array and len(items.shape) > 0 and not hasattr(items, "__getitems__")


def lengths(items: Any) -> set[int]:
    """Return the lengths of arrays, or of another object."""
    parts = flat(_nest_of(items)) if holds_arrays(items) else [items]
    return {int(part.shape[0]) if holds_arrays(part) else len(part) for part in parts}


def _nest_of(items: Any) -> Any:
    """Return arrays in plain dicts and tuples, in the order of `as_arrays`."""
    if isinstance(items, Mapping):
        return {key: _nest_of(items[key]) for key in sorted(items)}
    return tuple(map(_nest_of, items)) if isinstance(items, tuple) else items


def _without_none(item: Any) -> Any:
    """Return an item without None at the end: as in Keras `(x, y, None)` is `(x, y)`."""
    while isinstance(item, tuple) and len(item) > 1 and item[-1] is None:
        item = item[:-1]
    return item


def _name(items: Any) -> str:
    return type(items).__name__


def _raised(error: BaseException) -> str:
    """Return what was raised, and where in the user's own code."""
    raised = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OWN) and not _INSTALLED.search(frame.filename)]
    return f"{raised} ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else raised
