"""What tests/fetching/test_remote.py lets live in other processes."""

from __future__ import annotations

import os
import time


class Counter:
    def __init__(self, start: int) -> None:
        self.number = start

    def add(self, number: int) -> int:
        print("this is no answer")
        self.number += number
        return self.number

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise ValueError("no such number")

    def die(self, code: int) -> None:
        os._exit(code)


def double(number: int) -> int:
    return 2 * number
