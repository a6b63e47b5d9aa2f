"""What the callbacks of a fit remember, as a checkpoint holds it."""

from __future__ import annotations

import copy
import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from mirrorkit._types import Json, KerasCallback
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.plain import Encoded, NotPlainError, decode, encode

_log = logging.getLogger("mirrorkit")

# Private to Keras: whether its TensorBoard has a profiler running, which ends with the process.
_OF_THE_PROCESS = ("_is_tracing", "_profiler_started")

_OWN = ("keras.", "mirrorkit.")  # their callbacks create again whatever they hold beside plain values

State = tuple[str, str, Any]  # name of the class, "state" or "attributes", and the value


class CallbackStates:
    """What each callback remembers.

    One with `get_state` is asked for it, and `set_state` is given it back; None says that there is nothing to save. Of
    any other it is those attributes with plain values (see `plain.py`) that are no longer what they were when its
    `on_train_begin` returned: what it was made with, and what it sets there, is the script's. A callback is known by
    the name of its class, and where there are several, by their order.

    Args:
        callbacks: those whose `on_train_begin` has just returned.
        history: the loop's own, which is saved elsewhere.
        tells: whether to log what is not restored, or cannot be saved.
    """

    def __init__(self, callbacks: Sequence[KerasCallback], history: dict[str, Any], *, tells: bool) -> None:
        self._callbacks = list(callbacks)
        self._history, self._tells = history, tells
        self._told: set[str] = set()
        self._began = [{} if _asks(one) else self._digests(one) for one in self._callbacks]
        for one in self._callbacks:
            if _asks(one) and self._own_state(one) is not None and not hasattr(one, "set_state"):
                name = type(one).__name__
                raise CheckpointError(
                    f"The callback {name} has get_state but no set_state(state) to restore the state. Define it, or "
                    "let get_state return None to save nothing."
                )

    def saved(self) -> tuple[Json, list[np.ndarray]]:
        """Return what a checkpoint says about them, and copies of the arrays in it."""
        callbacks, arrays, described = [], [], []
        for one, began in zip(self._callbacks, self._began, strict=True):
            name = type(one).__name__
            if _asks(one):
                state = self._own_state(one) or Encoded()
                callbacks.append({"name": name, "state": state.value})
                found = state.arrays
            else:
                changed = {n: value for n, value in self._attributes(one).items() if _changed(value, began, n)}
                pairs = [[n, value.value] for n, value in changed.items()]
                callbacks.append({"name": name, "attributes": {"dict": pairs}})
                found = [array for value in changed.values() for array in value.arrays]
            arrays += [array.copy() for array in found]
            described += [{"path": name, "shape": list(array.shape), "dtype": array.dtype.name} for array in found]
        return {"callbacks": callbacks, "arrays": described}, arrays

    def restore(self, states: Sequence[State] | None) -> None:
        """Give the callbacks back what a checkpoint holds; None where it is of a version that held nothing."""
        if states is None:
            if self._callbacks:
                self._tell("This checkpoint is of an older mirrorkit, which saved no callbacks; they start afresh.")
            return
        saved = dict(zip(_numbered([name for name, _, _ in states]), states, strict=True))
        for one, key in zip(self._callbacks, _numbered([type(one).__name__ for one in self._callbacks]), strict=True):
            name, kind, state = saved.pop(key, (key[0], "", None))
            if kind == ("state" if _asks(one) else "attributes"):
                self._set(one, state)
            elif not _asks(one) or one.get_state() is not None:
                self._tell(f"The checkpoint has no state of this callback {name}; it starts afresh.")
        for name, kind, state in saved.values():
            if state is not None and not (isinstance(state, dict) and not state):
                self._tell(f"The checkpoint has the {kind} of a callback {name}, which this fit has not; left out.")

    def kept(self) -> Callable[[], None]:
        """Return what puts everything back to what the callbacks remember now."""
        now: list[Any] = []
        for one in self._callbacks:
            if _asks(one):
                state = self._own_state(one)
                now.append((None if state is None else state.digest(), copy.deepcopy(one.get_state())))
            else:
                plain = self._attributes(one)
                now.append({n: (value.digest(), copy.deepcopy(vars(one)[n])) for n, value in plain.items()})

        def put_back() -> None:
            for one, state in zip(self._callbacks, now, strict=True):
                if _asks(one):
                    digest, own = state
                    after = self._own_state(one)
                    if after is not None and after.digest() != digest:
                        self._set(one, own)
                    continue
                found = self._digests(one)
                self._set(one, {n: value for n, (digest, value) in state.items() if found.get(n) != digest})

        return put_back

    def _set(self, callback: Any, state: Any) -> None:
        if _asks(callback):
            if state is not None:
                _given_back(callback, "set_state", lambda: callback.set_state(state))
            return
        for name, value in state.items():
            if self._plain(callback, name, getattr(callback, name, None)) is not None:  # an object stays
                _given_back(callback, f"setting {name!r}", functools.partial(setattr, callback, name, value))

    def _own_state(self, callback: Any) -> Encoded | None:
        name, state = type(callback).__name__, callback.get_state()
        if state is None:
            return None
        try:
            return encode(state)
        except NotPlainError as error:
            raise CheckpointError(
                f"get_state of the callback {name} returned something that holds a {error}. It may hold None, numbers, "
                "texts, NumPy arrays, and lists, tuples and dicts of them."
            ) from error

    def _attributes(self, callback: Any) -> dict[str, Encoded]:
        """Return the plain attributes of a callback."""
        found = {name: self._plain(callback, name, value) for name, value in vars(callback).items()}
        return {name: value for name, value in found.items() if value is not None}

    def _digests(self, callback: Any) -> dict[str, bytes | None]:
        """Return for each attribute what tells whether it changes; None for one that is not plain."""
        plain = self._attributes(callback)
        return {name: plain[name].digest() if name in plain else None for name in vars(callback)}

    def _plain(self, callback: Any, name: str, value: Any) -> Encoded | None:
        if name in _OF_THE_PROCESS or value is self._history:
            return None
        try:
            return encode(value)
        except NotPlainError as error:
            if isinstance(value, Collection) and not callable(value) and not type(callback).__module__.startswith(_OWN):
                self._tell(
                    f"The attribute {name!r} of the callback {type(callback).__name__} holds a {error} and is not "
                    "saved in checkpoints. If a resumed run needs it, give the callback get_state and set_state."
                )
            return None

    def _tell(self, text: str) -> None:
        if self._tells and text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)


def read_states(callbacks: Json, arrays: Sequence[np.ndarray]) -> list[State]:
    """Return the states that `saved` described."""
    left, found = iter(arrays), []
    for one in callbacks:
        kind = "state" if "state" in one else "attributes"
        found.append((one["name"], kind, decode(one[kind], left)))
    return found


def _asks(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None))


def _given_back(callback: Any, what: str, give: Callable[[], None]) -> None:
    try:
        give()
    except Exception as error:
        raise CheckpointError(
            f"The callback {type(callback).__name__} cannot restore its state from the checkpoint: {what} raised "
            f"{type(error).__name__}: {error}. Let it take the state that it saved, or leave the callback out for one "
            "fit."
        ) from error


def _changed(value: Encoded, began: dict[str, bytes | None], name: str) -> bool:
    """Whether an attribute is another than in the beginning; where an object was, a plain value says it is closed."""
    if name in began and began[name] is None:
        return False
    return value.digest() != began.get(name)


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each name with how many of it came before."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append((name, seen[name]))
        seen[name] += 1
    return found
