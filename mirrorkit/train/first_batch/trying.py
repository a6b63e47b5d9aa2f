"""What may fail in a user's code while it is checked: on all rows, as it would in the training, or on parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mirrorkit.errors import StepError

T = TypeVar("T")


class NotOnAll(Exception):
    """All rows together could not be computed; why is its cause."""


class NotChecked(StepError):
    """The rows of a check could not be computed, not even all together."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(
            f"The first batch could not be checked for {name!r}: {type(error).__name__}: {error}. Before the first "
            "step on several shards, a few of its rows are computed outside of the training. A replica may get any "
            "number of rows, so any number must work: take it from the data (tf.shape(x)[0]). If this is right, write "
            f"Step(..., unchecked=({name!r},))."
        )


def on_all(compute: Callable[[], T]) -> T:
    """Compute something for all rows together."""
    try:
        return compute()
    except StepError:
        raise
    except Exception as error:  # whatever a user's function may raise
        raise NotOnAll from error


def tried(name: str, check: Callable[[], Iterable[str]], *, may_fail: bool = False) -> Iterator[str]:
    """Yield what a check finds; refuse what fails on parts of the rows, unless it `may_fail`: then it is a finding."""
    try:
        yield from check()
    except StepError:
        raise
    except NotOnAll as failed:
        if not may_fail:
            raise NotChecked(name, failed.__cause__ or failed) from failed.__cause__
    except Exception as error:
        if may_fail:
            yield f"Its check failed: {type(error).__name__}: {error}."
            return
        raise StepError(
            "Before the first step on several shards, a few rows of the first batch and parts of them are checked. The "
            f"parts failed for {name!r}: {type(error).__name__}: {error}. A replica may get any number of rows, so any "
            f"number must work. If this is right, write Step(..., unchecked=({name!r},))."
        ) from error
