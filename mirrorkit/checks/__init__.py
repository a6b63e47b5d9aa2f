"""Checks of a running training: are the replicas in sync, and which layer made the first NaN."""

from __future__ import annotations

__all__: list[str] = []
