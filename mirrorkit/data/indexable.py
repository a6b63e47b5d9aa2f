"""Whether an object gives examples by number, and how many; what does not is refused with what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mirrorkit.errors import DataError, RecipeError
from mirrorkit.fetching import holds_arrays, lengths

_STREAM = (
    "Write what it yields to files once, mk.data.write_records(examples, folder), and train on "
    "mk.data.records(folder, ...); or let a function make each worker's tf.data.Dataset: mk.data.from_function. A "
    "tf.data.Dataset of global batches is data for Loop as it is"
)
_MOST = 2**40  # examples; their numbers are held in memory


def number_of(items: Any) -> int:
    """Return how many examples an object holds.

    Raises:
        RecipeError: an object that does not give examples by number.
        DataError: arrays of different lengths, or none.
    """
    if cure := _elsewhere(items):
        raise RecipeError(f"source needs an object that returns examples by index, found {_named(items)}. {cure}.")
    try:
        found = lengths(items)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise RecipeError(
            f"source needs the number of examples, and {_named(items)} has none: {error}. {_STREAM}."
        ) from error
    if len(found) > 1:
        raise DataError(
            f"The arrays given to source hold {', '.join(map(str, sorted(found)))} examples; each example needs one "
            "row of each."
        )
    (number,) = found
    if number < 1:
        raise DataError(f"{_named(items)} holds no example; a recipe needs at least one. Look at where it comes from.")
    if number > _MOST:
        raise RecipeError(
            f"{_named(items)} has the length {number}: it repeats without end, or is wrong. Leave out its repeat(): "
            "each epoch takes all of it once."
        )
    return number


def _elsewhere(items: Any) -> str | None:
    """Return what to do with an object that gives no examples by number, or not those that were meant; else None."""
    if isinstance(items, (str, bytes)):
        return "Files are read by mk.data.records; a class of your own may open what lies at a path"
    if _is_of_pandas(items):
        return "pandas selects rows by their labels, not by position. Give arrays, such as table['price'].to_numpy()"
    if "keras" in sys.modules and isinstance(items, sys.modules["keras"].utils.PyDataset):
        return "It gives whole batches. Give it a class whose __getitem__(i) returns example i, without a batch"
    if isinstance(items, (tuple, Mapping)) and not holds_arrays(items):
        return (
            "A tuple or dict must hold arrays with a row for each example. Take one part of a set, parts['train']; "
            "other objects need a class around them"
        )
    if isinstance(items, list) and any(map(holds_arrays, items)):
        return "A list of arrays may mean several arrays, or an array for each example. Use a tuple, or np.stack"
    if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
        return f"It has no __getitem__ and __len__. {_STREAM}"
    return None


def _is_of_pandas(items: Any) -> bool:
    """Return whether it is a Series or DataFrame, or a tuple or dict with one."""
    if isinstance(items, (tuple, Mapping)):
        return any(map(_is_of_pandas, items.values() if isinstance(items, Mapping) else items))
    return hasattr(items, "iloc")


def _named(items: Any) -> str:
    return f"a {type(items).__name__}"
