"""Failures of a disk, from Python or from TensorFlow, as one kind of error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from mirrorkit.errors import FileError, MirrorkitError

# What TensorFlow makes of EACCES, EISDIR and ENOTDIR, ENOSPC.
DISK_ERRORS = (tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError, tf.errors.ResourceExhaustedError)

CURE = "Check the disk and the file's permissions."


@contextmanager
def file_errors(what: str, cure: str) -> Iterator[None]:
    """Turn what Python or TensorFlow raise about a file into a FileError: `what`, the reason, `cure`."""
    try:
        yield
    except MirrorkitError:
        raise
    except (OSError, tf.errors.OpError) as error:
        raise FileError(f"{what}: {reason(error)}. {cure}") from error


def reason(error: Exception) -> str:
    """The first line of what an error says, without TensorFlow's notes on nodes and operations."""
    message = error.message if isinstance(error, tf.errors.OpError) else error
    line = re.sub(r"^({{.*?}}\s*)+", "", str(message).partition("\n")[0])
    return re.split(r"{{|\[\[|\[Op:", line)[0].strip()
