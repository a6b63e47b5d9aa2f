"""What is said of an error that comes from other tasks, or may; and of batches that code does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

from mirrorkit._keras import keras
from mirrorkit.errors import ClusterError, MirrorkitError, StepError
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


class _Fixed(keras.layers.Layer):
    """It counts on a batch of 32."""

    def call(self, x: Any) -> Any:
        return tf.reshape(tf.reshape(x, [32, -1]), [32, x.shape[-1]])


def _fixed(make_loop: Any, where: tuple[str, int]) -> Any:
    return make_loop(where, lambda: sequential((4,), _Fixed(), keras.layers.Dense(1)))


@pytest.mark.parametrize(
    "known", [pytest.param(True, marks=pytest.mark.slow), False], ids=["of known length", "of unknown length"]
)
def test_a_smaller_last_batch_that_a_layer_does_not_take(known: bool, make_loop: Any, numbers: Any) -> None:
    x, y = numbers
    loop, data = _fixed(make_loop, ("one_device", 1)), tf.data.Dataset.from_tensor_slices((x, y, np.ones(60)))
    data = data.batch(32) if known else data.filter(lambda *_: True).batch(32)
    with pytest.raises(MirrorkitError, match=r"tf\.shape\(x\)\[0\]\), not from a constant batch size"):
        loop.fit(data, verbose=0)
    with pytest.raises(MirrorkitError, match=r"batch 1 .*not from a constant batch size"):
        loop.predict(x, batch_size=32)
    assert len(loop.predict(x[:32], batch_size=32)) == 32


def test_a_share_of_a_batch_that_a_layer_does_not_take(make_loop: Any, numbers: Any) -> None:
    """What all rows together give cannot be given by shares of them: refused before the first step."""
    with pytest.raises(StepError, match=r"cannot be run on 16 rows .*Fixed.*not from a constant batch size") as raised:
        _fixed(make_loop, ("mirrored", 2)).fit(numbers[0][:32], numbers[1][:32], batch_size=32, verbose=0)
    assert len(str(raised.value).splitlines()) == 1
