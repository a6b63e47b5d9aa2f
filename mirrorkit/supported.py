"""mirrorkit's version, and those that it runs on: the oldest, and the newest that it was tested with."""

from __future__ import annotations

__version__ = "0.2.0"

Version = tuple[int, int]

PYTHON: tuple[Version, Version] = ((3, 10), (3, 13))
TENSORFLOW: tuple[Version, Version] = ((2, 18), (2, 21))
KERAS: tuple[Version, Version] = ((3, 10), (3, 15))  # older ones gave NaN metrics on several GPUs


def written(version: Version) -> str:
    """Return "2.18" for (2, 18)."""
    return ".".join(map(str, version))
