"""How much a compressed file may become in memory: what its header says is compared before anything is made."""

from __future__ import annotations

from pathlib import Path

from mirrorkit.errors import DataError

_LARGEST = 128 << 20  # bytes, more than any of the published files becomes
_RATIO = 4  # of a larger file, what it becomes for each of its bytes


def require_plausible(path: Path, claimed: int, size: int, cure: str) -> None:
    """Refuse a compressed file of `size` bytes that claims to become more than data of images does."""
    most = _LARGEST + _RATIO * size
    if claimed > most:
        raise DataError(
            f"{path} has {size} bytes and says that they become {claimed}, more than {most}: it is damaged, or made to "
            f"fill the memory. Delete it and fetch it again. {cure}"
        )
