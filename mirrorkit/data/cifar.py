"""Readers of CIFAR-10 and CIFAR-100 in the two layouts that their authors publish: "binary" and "python".

The layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Images come out as uint8 [N, 32, 32, 3], labels as int64 [N].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mirrorkit.data import plain_pickle
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
    try:
        content = plain_pickle.loads(path.read_bytes())
    except DataError as error:
        raise DataError(f"{path}: {error}. Fetch it again.") from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}. Fetch it again.") from error
    if b"data" not in content or label_key not in content:
        raise DataError(
            f"{path} is not a CIFAR file: it should hold 'data' and {label_key.decode()!r}. Fetch it again."
        )
    pixels, labels = content[b"data"], content[label_key]
    if isinstance(labels, list) and all(type(label) in (int, float) for label in labels):
        labels = np.asarray(labels)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{path}: {label_key.decode()!r} should hold integers, found {_found(labels)}. Fetch it again.")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        raise DataError(
            f"{path}: 'data' should be uint8 [{len(labels)}, {_PIXELS}], one row per label; found {_found(pixels)}. "
            "Fetch it again."
        )
    return _images(pixels), labels.astype(np.int64)


def _images(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _found(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
