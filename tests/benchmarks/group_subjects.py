"""What tests/benchmarks/test_benchmark_harness.py lets live in other processes."""

from __future__ import annotations

import os
import time


class Number:
    def __init__(self, number: int) -> None:
        self.number = number

    def who(self) -> str | None:
        return os.environ.get("WHO")

    def number_and_cores(self) -> tuple[int, list[int]]:
        return self.number, sorted(os.sched_getaffinity(0))

    def meet(self, folder: str) -> int:
        """Wait for the other one."""
        open(os.path.join(folder, str(self.number)), "x").close()
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
        return self.number

    def fail_if_one_else_wait(self) -> None:
        if self.number == 1:
            raise ValueError("number 1 fails")
        time.sleep(600)
