"""One TensorFlow device layout for the whole test process: the CPU, or a GPU, split into four (see device_choice.py).

Fixtures for the tests:
    strategy_of(kind, replicas)     a strategy over the first of these devices, made once per session
    run_python(code, ...)           run code in a fresh process, for tests that need another layout or environment
    small_tables                    embeddings that are small enough for a test are updated in place
    with_onednn                     the processes of this test convolve with oneDNN
    bucket                          an empty object store in memory
Every test starts with a cleared Keras session and seed 0, and fails when it leaves environment variables, child
processes or threads behind.
"""

from __future__ import annotations

import gc
import os

# Before TensorFlow is first imported: it reads this once. Tests only; the package itself leaves logging alone.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import device_choice
import pytest
import tensorflow as tf

from mirrorkit import strategy, testing
from mirrorkit._keras import keras
from mirrorkit.devices import onednn
from mirrorkit.train.step import tables

device_choice.split()

# A trace makes more objects than the collector expects of a program; it need not look at them every 700.
gc.set_threshold(20_000, 20, 20)

# A shell starts what it runs in the background with Ctrl-C ignored, and nohup ignores the hang-up; every process of the
# tests would inherit that.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings of 1 MiB are tables that are updated in place, whatever the optimizer."""
    monkeypatch.setattr(tables, "_SOME_ROWS", 2**20)
    monkeypatch.setattr(tables, "_ALL_ROWS", 2**20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is about CPU devices where the replicas are elsewhere."""
    for item in items:
        if device_choice.DEVICE != "cpu" and item.get_closest_marker("cpu"):
            item.add_marker(pytest.mark.skip(reason="it is about CPU devices"))


def pytest_collection_finish() -> None:
    """What has been imported stays: without this, each full collection looks through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def strategy_of() -> Callable[..., tf.distribute.Strategy]:
    """`strategy_of("mirrored", 2)`: kinds as in `mirrorkit.strategy.create`, over the first `replicas` devices.

    With `communication="ring"` there may be one in a process: TensorFlow numbers the collectives of each strategy from
    100 on, and takes those of one number for the same.
    """
    made: dict[tuple[str, int, str], tf.distribute.Strategy] = {}

    def get(kind: str, replicas: int, communication: str = "auto") -> tf.distribute.Strategy:
        key = kind, replicas, communication
        if key not in made:
            made[key] = strategy.create(kind, devices=device_choice.first(replicas), communication=communication)
        return made[key]

    return get


@pytest.fixture(scope="session")
def run_python() -> Callable[..., testing.ProcessResult]:
    """`mirrorkit.testing.run_in_fresh_process`; a call that uses TensorFlow costs about four seconds."""
    return testing.run_in_fresh_process


@pytest.fixture
def with_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that the test starts use oneDNN, unless somebody has decided it.

    For tests of accuracy, whose convolutions take several times as long where TensorFlow leaves it off.
    """
    if onednn.VARIABLE not in os.environ:
        monkeypatch.setenv(onednn.VARIABLE, "1")


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A store in memory without renames, empty at the beginning: memory://bucket."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail a test that leaves environment variables, child processes or non-daemon threads behind."""
    environment, threads, children = _environment(), set(threading.enumerate()), _children()
    yield
    after = _environment()
    changed = {name for name in environment.keys() | after.keys() if environment.get(name) != after.get(name)}
    assert not changed, f"the test left these environment variables changed: {sorted(changed)}"
    deadline = time.monotonic() + 3
    while left := _living_threads() - threads or _children().keys() - children.keys():
        if time.monotonic() > deadline:
            pytest.fail(f"the test left behind: {[_children().get(x, x) for x in left]}")
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _fresh_keras() -> None:
    """Names of layers, dtype policy and seeds as in a new process, so that the order of the tests does not matter."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _living_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _children() -> dict[int, str]:
    """Process id and command of each child of this process; empty where there is no /proc."""
    children = {}
    for pid in [pid for thread in Path("/proc/self/task").glob("*/children") for pid in _read(thread).split()]:
        command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")
        if "multiprocessing.resource_tracker" not in command:
            children[int(pid)] = command or _read(Path(f"/proc/{pid}/comm")).strip()
    return children


def _read(file: Path) -> str:
    """The content of a file of /proc; empty where its process or thread has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""
