"""What a compiled function runs, counted: kernels, copies between devices, collectives, and what slows it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

HOST_PLACE = "host"  # a GPU's place is "GPU:0"; mirrorkit.data's HOST is the name of a device


class FlaggedOperation(NamedTuple):
    """An operation that is worth a look."""

    op: str  # its type
    name: str  # with the layer's name in it
    line: str  # that made it
    what: str

    def __str__(self) -> str:
        """One line."""
        where = f", {self.line}" if self.line else ""
        return f"{self.op} ({self.name}{where}): {self.what}"


class Copy(NamedTuple):
    """A tensor that travels, and the operation that wants it."""

    source: str
    target: str
    size: int
    finding: FlaggedOperation


@dataclass
class Tally:
    """What a part of a function runs.

    Attributes:
        kernels: operations that launch on each device, by (device, type of operation).
        copies: by tensor and target; a tensor travels once to each device.
        reduced: bytes that each device gives to collectives.
        without_kernel: operations on a GPU that has no kernel for them; soft placement moves them to the host.
        blocking: operations that call Python, or whose result has a size that the device must find out.
        loops: loops within, each counted as if it went round once.
    """

    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    copies: dict[tuple[int, str], Copy] = field(default_factory=dict)
    reduced: Counter[str] = field(default_factory=Counter)
    without_kernel: list[FlaggedOperation] = field(default_factory=list)
    blocking: list[FlaggedOperation] = field(default_factory=list)
    loops: int = 0

    def kernels_on(self, device: str) -> int:
        """Return how many operations launch on a device."""
        return sum(count for (where, _), count in self.kernels.items() if where == device)

    def between(self, source: str, target: str) -> list[Copy]:
        """Return the copies from `source` to `target`, the largest first: "host", "GPU:0", or "GPU" for any."""
        found = [c for c in self.copies.values() if c.source.startswith(source) and c.target.startswith(target)]
        return sorted(found, key=lambda copy: -copy.size)

    def add_branches(self, branches: Sequence[Tally]) -> None:
        """Add the branch that runs most kernels, and what is found in any of them."""
        largest = max(branches, key=lambda branch: branch.kernels.total())
        self.kernels += largest.kernels
        self.reduced += largest.reduced
        for branch in branches:
            self.copies |= branch.copies
            self.without_kernel += branch.without_kernel
            self.blocking += branch.blocking
            self.loops += branch.loops


@dataclass
class Walk:
    """What a compiled function runs: `step` within the loop over its steps, `call` once around that loop."""

    call: Tally = field(default_factory=Tally)
    step: Tally = field(default_factory=Tally)
