"""What `placement` found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_placement.tally import HOST_PLACE, FlaggedOperation, Tally

SMALL = 64 * 1024  # bytes to the devices in a step, beside the batch: learning rate, seeds, indices
_SHOWN = 5  # copies of a kind, the largest


@dataclass(frozen=True)
class CallPlacement:
    """One compiled function of a loop. Figures are per step, or per update if it takes several batches.

    ```python
    call = placement(make_step, train)["train"]
    print(call.to_host, call.problems)  # 0 []
    ```

    Attributes:
        name: "train", "evaluate" or "predict", and whether it is for a smaller batch at the end of an epoch.
        step: what a step runs.
        around: what runs once per call, such as the copy of the number of steps to the host.
        batch_bytes: the bytes that a step's batches may bring from the host to the devices.
    """

    name: str
    step: Tally
    around: Tally
    batch_bytes: int

    @property
    def to_devices(self) -> int:
        """Bytes from the host to the devices in a step."""
        return sum(copy.size for copy in self.step.between(HOST_PLACE, "GPU"))

    @property
    def to_host(self) -> int:
        """Bytes from the devices to the host in a step; the host waits for each of these copies."""
        return sum(copy.size for copy in self.step.between("GPU", HOST_PLACE))

    @property
    def problems(self) -> list[str]:
        """All problems, one line each."""
        found = [f"without a kernel: {line}" for line in _grouped(self.step.without_kernel)]
        found += [f"blocks: {line}" for line in _grouped(self.step.blocking)]
        found += [
            f"waits: {line}" for line in _grouped([copy.finding for copy in self.step.between("GPU", HOST_PLACE)])
        ]
        if self.to_devices > self.batch_bytes + SMALL:
            largest = self.step.between(HOST_PLACE, "GPU")[:_SHOWN]
            found.append(
                f"{self.to_devices:,} bytes from the host to the devices in a step, where batch and {SMALL:,} bytes "
                f"come to {self.batch_bytes + SMALL:,}; the largest: {'; '.join(str(c.finding) for c in largest)}"
            )
        return [f"{self.name}: {line}" for line in found]


def _grouped(findings: Sequence[FlaggedOperation]) -> list[str]:
    """Return a line for each finding; what several replicas have in common is said once."""
    groups: dict[tuple[str, ...], list[FlaggedOperation]] = {}
    for finding in findings:
        what = re.sub(r"GPU:\d+", "GPU", finding.what)
        name = re.sub(r"replica_\d+/|_\d+$", "", finding.name)
        groups.setdefault((finding.op, name, finding.line, what), []).append(finding)
    return [f"{same[0]}{f' ({len(same)} times)' if len(same) > 1 else ''}" for same in groups.values()]


@dataclass(frozen=True)
class Placement:
    """Where a step's operations and bytes would be on GPUs.

    ```python
    report = placement(make_step, train)
    print([call.name for call in report.calls])  # ['train', 'evaluate', 'predict']
    print(report.problems, report.memory["GPU:0"]["weights"])  # [] 31400
    ```

    Attributes:
        devices: "GPU:0", "GPU:1", ...
        calls: one for each function that a loop compiles.
        memory: bytes on each device by kind: "weights", "layer state", "optimizer", "other", "data".
    """

    devices: Sequence[str]
    calls: Sequence[CallPlacement]
    memory: dict[str, dict[str, int]]

    @property
    def problems(self) -> list[str]:
        """Operations that block or have no kernel, waits, and copies to the devices beyond the batch."""
        return [line for call in self.calls for line in call.problems]

    def __getitem__(self, name: str) -> CallPlacement:
        """Return the call of this name, such as `report["train"]`."""
        return next(call for call in self.calls if call.name == name)
