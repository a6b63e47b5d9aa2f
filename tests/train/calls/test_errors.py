"""What is said of an error that comes from other tasks, or may."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from mirrorkit.errors import ClusterError
from mirrorkit.train.calls import errors


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Those that do not answer, under a strategy of parameter servers."""
    gone: dict[str, str] = {}
    monkeypatch.setattr(errors, "is_parameter_server", lambda strategy: True)
    monkeypatch.setattr(errors, "task_addresses", lambda strategy, job: {"ps 0": "host:1"})
    monkeypatch.setattr(errors, "unreachable", lambda tasks: gone)
    return gone


def raised(error: Exception) -> Any:
    with pytest.raises((tf.errors.OpError, ClusterError)) as found, errors.explained(None):  # type: ignore[arg-type]
        raise error
    return found.value


@pytest.mark.parametrize("kind", [tf.errors.InternalError, tf.errors.CancelledError])
def test_an_error_of_a_workers_own_work_is_no_lost_connection(kind: Any, servers: dict[str, str]) -> None:
    error = kind(None, None, "cuDNN failed")
    assert raised(error) is error
    servers["ps 0"] = "host:1"  # unless a server is gone
    assert "ps 0" in str(raised(error))


@pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.AbortedError])
def test_a_lost_connection_is_named(kind: Any, servers: dict[str, str]) -> None:
    found = raised(kind(None, None, "Socket closed"))
    assert isinstance(found, ClusterError)
    assert "The connection to a task was lost: Socket closed" in str(found)
