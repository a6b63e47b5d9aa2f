"""What decides which examples are in which batch, in words: an epoch that was begun is finished with the same."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mirrorkit.data import PreparedRecipe


def order_of(data: Any) -> str | None:
    """Return what decides, beside their number, which examples are in which batch; None where it is not known."""
    if isinstance(data, tf.data.Dataset):
        batches = int(data.cardinality())
        return f"{batches} batches of a tf.data.Dataset" if batches >= 0 else None
    if not getattr(data, "shuffle", False):
        return "no shuffle" if isinstance(data, PreparedRecipe) else None
    names = ("seed", "shuffle_buffer", *["shards"] * (getattr(data, "shards", 1) > 1))  # one has the order of batches
    return " ".join(["shuffle", *(f"{name}={getattr(data, name)}" for name in names if hasattr(data, name))])
