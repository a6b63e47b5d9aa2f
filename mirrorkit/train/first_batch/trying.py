"""What may fail in a user's code while it is checked: on all rows, as it would in the training, or on parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mirrorkit.errors import StepError
from mirrorkit.train.requirements.same_rows import ANY_ROWS, told

T = TypeVar("T")


class NotOnAll(Exception):
    """All rows together could not be computed; why is its cause."""


class NotChecked(StepError):
    """The rows of a check could not be computed, not even all together."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(
            f"The first batch could not be checked for {name!r}: {told(error)} Before the first step on several "
            f"shards, a few of its rows are computed outside of the training. {ANY_ROWS} If this is right, write "
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
            yield f"Its check failed: {told(error)}"
            return
        raise StepError(
            "Before the first step on several shards, a few rows of the first batch and parts of them are checked. The "
            f"parts failed for {name!r}: {told(error)} {ANY_ROWS} If this is right, write Step(..., "
            f"unchecked=({name!r},))."
        ) from error
