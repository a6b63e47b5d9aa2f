"""Naming lost workers from TensorFlow's errors; workers that are really lost are in tests/multiworker."""

from __future__ import annotations

import mmap
import traceback
from pathlib import Path

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.cluster import free_ports
from mirrorkit.errors import ClusterError
from mirrorkit.strategy import lost

SILENT = (
    "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n"
    "The tasks have crashed. Additional GRPC error information from remote target /job:worker/replica:0/task:0: ..."
)


@pytest.fixture
def listening(monkeypatch):
    """The workers that listen, of three; this process is worker 0."""
    addresses = {f"worker {i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3))}
    monkeypatch.setattr(lost, "addresses", lambda strategy: addresses)
    monkeypatch.setattr(lost, "worker_name", lambda strategy: "worker 0")
    monkeypatch.setattr(lost, "_SECONDS_TO_EXIT", 0.0)
    there = set(addresses)
    monkeypatch.setattr(lost, "unreachable", lambda others: [task for task in others if task not in there])
    return there


def fail_with(error, strategy=None):
    with mk.strategy.naming_lost_workers(strategy):
        raise error


def test_a_worker_that_does_not_listen_is_gone(listening):
    listening.remove("worker 2")
    with pytest.raises(ClusterError, match=r"^worker 2 \(127\.0\.0\.1:\d+\) is gone"):
        fail_with(tf.errors.InternalError(None, None, "NCCL"))


@pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.InternalError])
def test_a_closed_connection_adds_no_lines_to_a_worker_that_is_gone(listening, kind):
    listening.remove("worker 1")
    error = kind(None, None, "Socket closed")
    with pytest.raises(ClusterError) as caught:
        fail_with(error)
    printed = "".join(traceback.format_exception(caught.value))
    assert ("Socket closed" in printed) is (kind is tf.errors.InternalError)


def test_a_worker_without_heartbeats_has_stopped_answering(listening):
    with pytest.raises(ClusterError, match=r"^worker 1 \(127\.0\.0\.1:\d+\) has stopped answering"):
        fail_with(tf.errors.InternalError(None, None, SILENT))


@pytest.mark.usefixtures("listening")
def test_where_nobody_is_named_it_may_be_any_other_worker():
    with pytest.raises(ClusterError, match=r"^worker 1 \(.*\) or worker 2 \(.*\) has stopped answering"):
        fail_with(tf.errors.UnavailableError(None, None, "Socket closed"))


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("error", [tf.errors.InternalError(None, None, "other"), ValueError("other")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error), match="other"):
        fail_with(error)


def test_in_one_process_nothing_changes(strategy_of):
    with pytest.raises(tf.errors.UnavailableError):
        fail_with(tf.errors.UnavailableError(None, None, "Socket closed"), strategy_of("mirrored", 2))


def test_tensorflow_still_says_it_in_these_words():
    """What `_SILENT` matches is text within one of TensorFlow's libraries: this fails when it changes."""
    folder = Path(tf.sysconfig.get_lib())
    libraries = [next(folder.glob(f"libtensorflow_{name}.*"), None) for name in ("framework", "cc")]
    assert any(_holds(library, lost._SILENT.encode()) for library in libraries if library)


def _holds(library, text):
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) > 0
