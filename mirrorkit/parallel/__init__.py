"""Model parallelism: a model larger than one device, under the same `Step` and `Loop`."""

from __future__ import annotations

from mirrorkit.parallel.following import following as following
from mirrorkit.parallel.layout import Layout
from mirrorkit.parallel.recompute import Recompute

__all__ = ["Layout", "Recompute"]
