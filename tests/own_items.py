"""Objects that give examples by number, as users write them; processes import them from here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np


class Items:
    """Examples `(x, y)`, which notes the number of each that is fetched, and can be pickled."""

    def __init__(self, x: np.ndarray, y: np.ndarray, log: Path | None = None) -> None:
        self.x, self.y, self.log = x, y, log
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        self.fetched.append(number)
        if self.log is not None:
            with self.log.open("a") as file:  # a short line is written at once, whoever else writes
                file.write(f"{number} {os.getpid()}\n")
        return self.x[number], self.y[number]


class Together(Items):
    """The same with `__getitems__`, which alone is to be called."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [super(Together, self).__getitem__(number) for number in numbers]

    def __getitem__(self, number: int) -> Any:
        if number:
            raise AssertionError("items are fetched together")
        return super().__getitem__(number)


class Faulty(Items):
    """One item raises an error, or is another thing than the others."""

    def __init__(self, number: int, fault: Any, count: int = 40) -> None:
        super().__init__(np.zeros((count, 3), np.float32), np.arange(count) % 4)
        self.number, self.fault = number, fault

    def __getitem__(self, number: int) -> Any:
        if number != self.number:
            return super().__getitem__(number)
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault


class Stuck(Items):
    """Items from number 10 on never come."""

    def __getitem__(self, number: int) -> Any:
        if number >= 10:
            time.sleep(600)
        return super().__getitem__(number)


class Ending(Items):
    """A process other than the first one ends at item 7, as by a fault in C."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__(x, y)
        self.first = os.getpid()

    def __getitem__(self, number: int) -> Any:
        if number == 7 and os.getpid() != self.first:
            os._exit(3)
        return super().__getitem__(number)


class Ascending:
    """An array like HDF5's: it takes a number, a slice, or ascending numbers without repetition."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.asked: list[object] = []

    def __getitem__(self, rows: object) -> np.ndarray:
        self.asked.append(rows)
        assert not isinstance(rows, np.ndarray) or (np.diff(rows) > 0).all()
        return self.array[rows]
