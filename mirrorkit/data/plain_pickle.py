"""Read a pickle without running it: containers, text, numbers, and NumPy arrays of plain integers.

`pickle.Unpickler` is no safe ground, whatever its `find_class` refuses: a state makes a dtype of any fields, and so an
array of pointers; a memo index makes it reserve gigabytes; the hash of a tuple nested deeply overflows the C stack.
Here the opcodes are those that NumPy arrays in a dict need, and an array is made of bytes that are there.
"""

from __future__ import annotations

import enum
import math
import pickletools
from typing import Any

import numpy as np

from mirrorkit.errors import DataError

_DTYPES = {name: np.dtype(name) for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")}
_DTYPES |= {dtype.name: dtype for dtype in _DTYPES.values()}
_NUMBERS = ("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT")
_TEXT = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES")
_PYTHON_2_STRINGS = ("STRING", "SHORT_BINSTRING", "BINSTRING")  # bytes, of which pickletools makes text
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MARK = object()
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Named(enum.Enum):
    """What the pickle may name; nothing of NumPy's, so that nothing can be called."""

    RECONSTRUCT, NDARRAY, DTYPE = range(3)


_NAMES = {
    "numpy.core.multiarray._reconstruct": _Named.RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _Named.RECONSTRUCT,
    "numpy.ndarray": _Named.NDARRAY,
    "numpy.dtype": _Named.DTYPE,
}


class _Dtype:
    """Stands in for a dtype of the pickle, until its byte order is known."""

    def __init__(self, name: Any) -> None:
        name = name.decode("latin-1") if isinstance(name, bytes) else name
        if not isinstance(name, str) or name not in _DTYPES:
            found = f" ({name[:20]!r})" if isinstance(name, str) else ""
            raise DataError(f"an array has a dtype{found} that is not an integer type")
        self.dtype = _DTYPES[name]

    def set_state(self, state: Any) -> None:
        """Take the byte order of a plain dtype, which has neither fields nor a shape."""
        if not isinstance(state, tuple) or state[2:] != (None, None, None, -1, -1, 0):
            raise DataError("a dtype has fields or flags, which no array of integers needs")
        if state[1] not in (b"<", "<", b">", ">", b"|", "|"):
            raise DataError("a dtype has no byte order")
        self.dtype = self.dtype.newbyteorder(">" if state[1] in (b">", ">") else "<")


class _Array:
    """Stands in for an array of the pickle, until its bytes are known."""

    array: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        """Make the array of the bytes that are there."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise DataError("an array has no state (version, shape, dtype, order, bytes)")
        _, shape, dtype, fortran, content = state
        sizes = shape if isinstance(shape, tuple) and 1 <= len(shape) <= 8 else (None,)
        if not isinstance(dtype, _Dtype) or not all(type(size) is int and 0 <= size < 2**31 for size in sizes):
            raise DataError("an array has no dtype and shape of whole numbers")
        if not isinstance(content, bytes) or len(content) != math.prod(sizes) * dtype.dtype.itemsize:
            found = len(content) if isinstance(content, bytes) else "none"
            raise DataError(f"an array {dtype.dtype} {list(sizes)} has the wrong number of bytes ({found})")
        self.array = np.frombuffer(content, dtype.dtype).reshape(sizes, order="F" if fortran else "C")


def loads(pickled: bytes) -> dict[bytes | str, Any]:
    """Return the dict in a pickle. Strings of Python 2 are bytes.

    Raises:
        DataError: the pickle names anything but an array, or holds what is neither text nor numbers.
        Exception: of any kind, where it is damaged.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name in _NUMBERS or name in _TEXT:
            stack.append(argument)
        elif name in _PYTHON_2_STRINGS:
            stack.append(argument.encode("latin-1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_named(*(argument.split(" ") if name == "GLOBAL" else _popped(stack, 2))))
        elif name in _TUPLES:
            stack.append(tuple(_popped(stack, _TUPLES[name])))
        elif name in ("TUPLE", "LIST", "DICT"):
            items = _popped(stack)
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _into({}, items))
        elif name in ("APPEND", "APPENDS"):
            items = _popped(stack, 1 if name == "APPEND" else None)
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = _popped(stack, 2 if name == "SETITEM" else None)
            _into(stack[-1], items)
        elif name == "REDUCE":
            function, arguments = _popped(stack, 2)
            stack.append(_called(function, arguments))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].set_state(state)
        elif name == "STOP":
            (content,) = stack
            if not isinstance(content, dict):
                raise DataError("it is not a CIFAR file: it should hold 'data' and 'labels' in a dict")
            return {key: value.array if isinstance(value, _Array) else value for key, value in content.items()}
        else:
            raise DataError(f"the pickle uses {name}, which no CIFAR file needs; nothing was run")
    raise EOFError("no STOP at the end of the pickle")


def _named(module: Any, name: Any) -> _Named:
    if not isinstance(module, str) or not isinstance(name, str):
        raise DataError("the pickle asks for something without a name; nothing was run")
    asked = f"{module}.{name}"
    if asked not in _NAMES:
        raise DataError(f"the pickle asks for {asked[:80]}, which no CIFAR file needs; nothing was run")
    return _NAMES[asked]


def _called(function: Any, arguments: Any) -> _Dtype | _Array:
    if function is _Named.RECONSTRUCT:
        return _Array()
    if function is _Named.DTYPE and isinstance(arguments, tuple) and arguments:
        return _Dtype(arguments[0])
    raise DataError("the pickle makes a call that no CIFAR file needs; nothing was run")


def _popped(stack: list[Any], count: int | None = None) -> list[Any]:
    """Take so many items, or those down to the last mark, off the stack."""
    first = len(stack) - (count or 0)
    while count is None and stack[first - 1] is not _MARK:
        first -= 1  # without a mark an IndexError ends it
    if first < 0:
        raise IndexError("pop from an empty stack")
    items = stack[first:]
    del stack[first - (count is None) :]
    return items


def _into(into: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Add keys and values in turn; keys are text, since to hash others may take without end."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in (bytes, str):
            raise DataError(f"a key is {type(key).__name__}, not text")
        into[key] = value
    return into
