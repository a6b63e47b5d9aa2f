"""What workers compare; here each is a thread, and real ones are in tests/multiworker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirrorkit.errors import ArgumentError, ClusterError
from mirrorkit.strategy import agreement, barrier, exchange, workers as strategy_workers


class Workers:
    """Threads that exchange arrays as workers do; a message of another size on one of them would hang."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages = 0
        self._barrier = threading.Barrier(number, timeout=20)
        self._rows: list[Any] = [None] * number

    def exchanged(self, worker: SimpleNamespace, own: np.ndarray, size: int) -> np.ndarray:
        self._rows[worker.index] = np.pad(own, (0, size - own.size))
        self._barrier.wait()
        assert len({row.shape for row in self._rows}) == 1, [row.shape for row in self._rows]
        found = np.array(self._rows, np.float64)
        self._barrier.wait()
        self.messages += worker.index == 0
        return found

    def run(self, function: Callable[[SimpleNamespace], Any]) -> list[Any]:
        """Return what each worker returns or raises."""

        def on(index: int) -> Any:
            try:
                return function(SimpleNamespace(index=index, scope=None))
            except ClusterError as error:
                return str(error)

        with ThreadPoolExecutor(self.number) as threads:
            return list(threads.map(on, range(self.number)))


@pytest.fixture
def workers_of(monkeypatch) -> Callable[[int], Workers]:
    def make(number: int) -> Workers:
        workers = Workers(number)
        for module in (agreement, exchange):
            monkeypatch.setattr(module, "num_workers", lambda worker: number)
        monkeypatch.setattr(exchange, "_exchanged", workers.exchanged)
        names = {f"worker {i}": "" for i in range(number)}
        monkeypatch.setattr(strategy_workers, "addresses", lambda worker: names)
        for module in (agreement, barrier):
            monkeypatch.setattr(module, "saying_what_is_missing", lambda where: contextlib.nullcontext())
        return workers

    return make


def test_workers_that_agree_exchange_one_message(workers_of):
    workers = workers_of(2)
    assert workers.run(lambda worker: agreement.require_same(worker, "step", {"rate": 0.5})) == [None, None]
    assert workers.messages == 1


def test_every_worker_names_what_differs_and_who_has_which(workers_of):
    settings = [{"rate": 0.5, "same": 1}, {"rate": 0.5, "same": 1}, {"rate": 0.125, "same": 1}]
    found = workers_of(3).run(lambda worker: agreement.require_same(worker, "step", settings[worker.index]))
    for text in found:
        assert "do not have the same step: rate is 0.5 on worker 0, worker 1 and 0.125 on worker 2. All" in text
        assert "same is" not in text


def test_a_setting_of_some_workers_alone_is_missing_on_the_others(workers_of):
    settings: list[dict[str, Any]] = [{"a": 1}, {"a": 1, "b": "x" * 1000, **{f"c{i}": i for i in range(9)}}]
    found = workers_of(2).run(lambda worker: agreement.require_same(worker, "step", settings[worker.index]))
    for text in found:
        assert "b is missing on worker 0 and 'xxx" in text
        assert "and 7 more" in text
        assert len(text) < 600


def test_workers_at_different_places_say_where(workers_of):
    found = workers_of(2).run(lambda worker: agreement.require_same(worker, ["fit", "step"][worker.index], {}))
    assert all("not at the same place of the program: fit on worker 0 and step on worker 1" in text for text in found)


@pytest.mark.parametrize("size", [1, 5, 44, 45, 5000])
def test_a_worker_that_is_elsewhere_is_told_whatever_the_sizes(workers_of, size):
    def call(worker):
        if worker.index == 0:
            with exchange.place("Loop.evaluate"):
                return exchange.of_all_workers(worker, 1)
        with exchange.place("Loop.fit"):
            return exchange.arrays_of_all_workers(worker, np.zeros(size))

    workers = workers_of(3)
    for text in workers.run(call):
        assert "same place of the program: Loop.evaluate on worker 0 and Loop.fit on worker 1, worker 2. All" in text
    assert workers.messages == 1


def test_other_sizes_at_one_place_are_told(workers_of):
    for text in workers_of(2).run(lambda w: exchange.arrays_of_all_workers(w, np.zeros(3 + 90 * w.index))):
        assert "a call of your own with 3 numbers to compare on worker 0 and a call of your own with 93" in text


@pytest.mark.parametrize("shape", [(), (0,), (44,), (45,), (3, 7), (40, 50)])
def test_arrays_arrive_as_they_were(workers_of, shape):
    values = [np.random.default_rng(i).normal(size=shape) for i in range(3)]
    values[1] = np.where(np.arange(values[1].size).reshape(shape) == 0, np.nan, values[1])
    for found in workers_of(3).run(lambda w: exchange.arrays_of_all_workers(w, values[w.index])):
        np.testing.assert_array_equal(found, values)


def test_barriers_of_other_names_are_told(workers_of):
    long = "x" * 200
    found = workers_of(2).run(lambda w: barrier.wait_for_all(w, [long + "a", long + "b"][w.index]))
    assert all("same place of the program: the barrier 'xxx" in text for text in found)
    assert workers_of(2).run(lambda w: barrier.wait_for_all(w, long)) == [None, None]


@pytest.mark.parametrize("size", [0, 1, 5, 4096])
def test_what_the_chief_tells_arrives_bit_by_bit(workers_of, size):
    data = np.random.default_rng(0).bytes(size)
    assert workers_of(3).run(lambda w: agreement.of_chief(w, data if w.index == 0 else b"own")) == [data] * 3


def test_one_process_compares_nothing(strategy_of):
    strategy = strategy_of("mirrored", 2)
    agreement.require_same(strategy, "step", {"not for JSON": object()})
    assert agreement.of_chief(strategy, b"abc") == b"abc"


@pytest.mark.parametrize("value", ["3", b"3", None, {"a": 1}, [1, 2], np.ones(2)], ids=str)
def test_what_is_no_number_is_refused(value: Any, strategy_of: Any) -> None:
    with pytest.raises(ArgumentError, match="one number of each worker"):
        exchange.of_all_workers(strategy_of("one_device", 1), value)
