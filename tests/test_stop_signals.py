from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorkit import stop_signals


@pytest.fixture
def sigterm():
    """SIGTERM as it was, after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield signal.SIGTERM
    signal.signal(signal.SIGTERM, before)


def test_signals_are_caught_and_put_back(sigterm):
    first, second = [], []
    signal.signal(sigterm, lambda number, frame: first.append(number))
    before = stop_signals.catch([sigterm], lambda number, frame: second.append(number))
    os.kill(os.getpid(), sigterm)
    assert (first, second) == ([], [sigterm])
    stop_signals.put_back(before)
    os.kill(os.getpid(), sigterm)
    assert (first, second) == ([sigterm], [sigterm])
    signal.signal(sigterm, signal.SIG_DFL)
    stop_signals.put_back(before)  # does nothing the second time
    assert signal.getsignal(sigterm) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored(sigterm):
    signal.signal(sigterm, signal.SIG_IGN)
    assert stop_signals.catch([sigterm], lambda number, frame: None) == {}
    assert signal.getsignal(sigterm) is signal.SIG_IGN


def test_only_the_main_thread_catches(sigterm):
    before = signal.getsignal(sigterm)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(stop_signals.catch, [sigterm], lambda number, frame: None).result() == {}
        assert not pool.submit(stop_signals.can_catch).result()
    assert stop_signals.can_catch()
    assert signal.getsignal(sigterm) is before


def test_a_handler_that_python_did_not_install_becomes_the_default(sigterm):
    stop_signals.put_back({sigterm: None})
    assert signal.getsignal(sigterm) is signal.SIG_DFL
