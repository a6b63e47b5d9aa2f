"""Readers of CIFAR-10 and CIFAR-100 in the two layouts that their authors publish: "binary" and "python".

The layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Images come out as uint8 [N, 32, 32, 3], labels as int64 [N].
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from mirrorkit.errors import DataError

_PIXELS = 3 * 32 * 32


def read_binary(path: Path, *, label_bytes: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Read one "binary" file: records of `label_bytes` label bytes, of which the last counts, and 3072 pixels."""
    content = np.fromfile(path, np.uint8)
    record = label_bytes + _PIXELS
    if content.size == 0 or content.size % record:
        raise DataError(
            f"{path} is cut short or damaged: it should hold records of {record} bytes, found {content.size} bytes "
            f"({content.size // record} records and {content.size % record} bytes). Fetch it again."
        )
    records = content.reshape(-1, record)
    return _images(records[:, label_bytes:]), records[:, label_bytes - 1].astype(np.int64)


def read_python(path: Path, *, label_key: bytes = b"labels") -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels of one "python" file, a pickle of which only arrays and plain containers are loaded."""
    pickled = io.BytesIO(path.read_bytes())
    try:
        content = _ArraysOnly(pickled, encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path} is damaged: {type(error).__name__}: {error}. Fetch it again.") from error
    if not isinstance(content, dict) or b"data" not in content or label_key not in content:
        raise DataError(
            f"{path} is not a CIFAR file: it should hold 'data' and {label_key.decode()!r}. Fetch it again."
        )
    pixels, labels = content[b"data"], np.asarray(content[label_key])
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        found = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{path}: 'data' should be uint8 [{len(labels)}, {_PIXELS}], one row per label; found {found}.")
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path}: {label_key.decode()!r} should hold integers, found {labels.dtype}.")
    return _images(pixels), labels.astype(np.int64)


def _images(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


class _ArraysOnly(pickle.Unpickler):
    """A pickle may call any function it names, so only the three that make up an array are let through."""

    _reconstruct = np.empty(0).__reduce__()[0]
    _ALLOWED = {  # noqa: RUF012
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise DataError(f"the pickle asks for {module}.{name}, which no CIFAR file needs; nothing was run")
        return self._ALLOWED[module, name]
