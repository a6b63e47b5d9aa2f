"""What the callbacks of a fit remember, as a checkpoint holds it."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mirrorkit._types import Json, KerasCallback
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.plain import NotPlainError, decode, encode

_log = logging.getLogger("mirrorkit")

_REMEMBERED = {  # by Keras's callbacks, some of it privately; not what the script or on_train_begin sets
    "CSVLogger": "keys",
    "EarlyStopping": "best best_epoch best_weights stopped_epoch wait",
    "History": "epoch",
    "ModelCheckpoint": "best _batches_seen_since_last_saving _current_epoch _last_batch_seen",
    "OrbaxCheckpoint": "best _batches_seen_since_last_saving _last_batch_seen _total_batches_seen",
    "ReduceLROnPlateau": "best cooldown_counter wait",
    "SwapEMAWeights": "_ema_weights_in_model",
    "TensorBoard": "_global_test_batch _global_train_batch",
}

_NOTHING: Json = {"dict": []}  # an empty dict, encoded

State = tuple[str, str, Any]  # name of the class, "state" or "attributes", and the value


class CallbackStates:
    """What each callback remembers.

    One with `get_state` is asked for it, and `set_state` is given it back; None says that there is nothing to save. Of
    Keras's, and of classes derived from them, it is the attributes in `_REMEMBERED`. No other attribute is saved: it
    may be a secret, and others may read the checkpoint. A callback is known by the name of its class, and where there
    are several, by their order.

    Args:
        callbacks: those whose `on_train_begin` has just returned.
        history: the loop's own, which is saved elsewhere.
        tells: whether to log what is not restored, or not saved.
    """

    def __init__(self, callbacks: Sequence[KerasCallback], history: dict[str, Any], *, tells: bool) -> None:
        self._callbacks = [one for one in callbacks if _asks(one) or _remembered(one)]
        self._history = history
        self._tell = _log.warning if tells else _log.debug
        for one in filter(_asks, callbacks):
            if _encoded(one)[0] is not None and not hasattr(one, "set_state"):
                raise CheckpointError(
                    f"The callback {type(one).__name__} has get_state but no set_state(state) to restore the state. "
                    "Define it, or let get_state return None to save nothing."
                )
        users = [one for one in callbacks if not _asks(one) and not _is_keras(type(one))]
        self._unsaved = [(one, set(self._marks(one))) for one in users]

    def saved(self) -> tuple[Json, list[np.ndarray]]:
        """Return what a checkpoint says about them, and copies of the arrays in it."""
        callbacks, arrays = [], []
        for one in self._callbacks:
            name, kind = _key(one)
            value, found = _encoded(one)
            callbacks.append({"name": name, kind: value})
            arrays += [array.copy() for array in found]
        self._tell_unsaved()
        return {"callbacks": callbacks, "arrays": [{"dtype": array.dtype.name} for array in arrays]}, arrays

    def restore(self, states: Sequence[State] | None) -> None:
        """Give the callbacks back what a checkpoint holds; None where it is of a version that held nothing."""
        saved: dict[tuple[str, str], list[Any]] = {}
        for name, kind, state in states or ():
            saved.setdefault((name, kind), []).append(state)
        for one in self._callbacks:
            if left := saved.get(_key(one)):
                _set(one, left.pop(0))
            elif _state(one) is not None:
                self._tell(f"The checkpoint has no state of this callback {type(one).__name__}; it starts afresh.")
        for (name, kind), left in saved.items():
            if left:
                self._tell(
                    f"The checkpoint has the {kind} of a callback {name}, which this fit does not take; left out."
                )

    def kept(self) -> list[Any]:
        """Return what the callbacks remember now, for `put_back`."""
        return [copy.deepcopy(_state(one)) for one in self._callbacks]

    def put_back(self, kept: list[Any]) -> None:
        """Give the callbacks back what they remembered then."""
        for one, state in zip(self._callbacks, kept, strict=True):
            _set(one, state)

    def _marks(self, callback: Any) -> Iterator[tuple[str, int]]:
        """Yield the attributes that are not saved, each with a number that tells of a change.

        None and objects have no such number: a file, say, is opened and closed.
        """
        for name, value in vars(callback).items():
            if value is None or value is self._history or name in _remembered(callback):
                continue
            try:
                yield name, hash(repr(encode(value)))
            except NotPlainError:
                if isinstance(value, (list, dict, set, deque)):
                    yield name, len(value)

    def _tell_unsaved(self) -> None:
        """Name each callback once that has changed other attributes than those that are saved."""
        for one, began in list(self._unsaved):
            if changed := [repr(mark[0]) for mark in self._marks(one) if mark not in began]:
                self._unsaved.remove((one, began))
                self._tell(
                    f"The callback {type(one).__name__} has changed {', '.join(changed)}, which checkpoints do not "
                    "save. If a resumed run needs this, give the callback get_state(), which returns what to save, and "
                    "set_state(state); if not, let get_state return None."
                )


def read_states(callbacks: Json, arrays: Sequence[np.ndarray]) -> list[State]:
    """Return the states that `saved` described."""
    left, found = iter(arrays), []
    for one in callbacks:
        kind = "state" if "state" in one else "attributes"
        if one[kind] not in (None, _NOTHING):
            found.append((one["name"], kind, decode(one[kind], left)))
    return found


def _asks(callback: Any) -> bool:
    return hasattr(callback, "get_state")


def _key(callback: Any) -> tuple[str, str]:
    return type(callback).__name__, "state" if _asks(callback) else "attributes"


def _is_keras(kind: type) -> bool:
    return kind.__module__.startswith("keras.")


def _remembered(callback: Any) -> list[str]:
    """Return the names of the attributes that are saved without `get_state`."""
    kinds = filter(_is_keras, type(callback).__mro__)
    return [name for kind in kinds for name in _REMEMBERED.get(kind.__name__, "").split()]


def _state(callback: Any) -> Any:
    if _asks(callback):
        return callback.get_state()
    found = vars(callback).items()
    return {name: value for name, value in found if value is not None and name in _remembered(callback)}


def _encoded(callback: Any) -> tuple[Json, list[np.ndarray]]:
    try:
        return encode(_state(callback))
    except NotPlainError as error:
        if not _asks(callback):  # a best value that is a tensor, say: it starts afresh
            return _NOTHING, []
        raise CheckpointError(
            f"get_state of the callback {type(callback).__name__} returned something that holds a {error}. It may hold "
            "None, numbers, texts, NumPy arrays, and lists, tuples and dicts of them."
        ) from error


def _set(callback: Any, state: Any) -> None:
    try:
        if not _asks(callback):
            vars(callback).update((name, state[name]) for name in _remembered(callback) if name in state)
        elif state is not None:
            callback.set_state(state)
    except Exception as error:
        raise CheckpointError(
            f"The callback {type(callback).__name__} cannot restore its state from the checkpoint: "
            f"{type(error).__name__}: {error}. Let it take the state that it saved, or leave the callback out for one "
            "fit."
        ) from error
