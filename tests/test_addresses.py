"""Every path that mirrorkit writes to takes an address, or refuses it by name; no folder "s3:" comes into being."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.doctor import storage
from mirrorkit.errors import ArgumentError
from mirrorkit.object_storage import require_local
from mirrorkit.train.loop.callback_paths import require_writable

ROWS = np.ones((4, 2), "float32")
LOCAL = {  # which write to local paths alone
    "CSVLogger": lambda path: require_writable([keras.callbacks.CSVLogger(path + ".csv")]),
    "write_records": lambda path: mk.data.write_records(mk.data.arrays(ROWS), path),
}
BY_TENSORFLOW = {  # which take what TensorFlow opens
    "TensorBoard": lambda path: require_writable([keras.callbacks.TensorBoard(path)]),
    "ModelCheckpoint": lambda path: require_writable([keras.callbacks.ModelCheckpoint(path + ".keras")]),
    "profile": mk.timing.profile,
}
ANY = {  # which take what fsspec opens
    "Checkpoints": mk.train.Checkpoints,
    "export": lambda path: mk.train.export(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), path),
    "doctor": lambda path: list(storage.checkpoints(path)),
}


@pytest.fixture(autouse=True)
def _no_such_folder(tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("*:*"))


@pytest.mark.parametrize("name", [*LOCAL, *BY_TENSORFLOW, *ANY])
def test_what_only_looks_like_an_address_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="begins like an address"):
        {**LOCAL, **BY_TENSORFLOW, **ANY}[name]("s3:/bucket/run")


@pytest.mark.parametrize("name", [*LOCAL, *BY_TENSORFLOW])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_what_cannot_be_written_is_refused_by_name(name: str, scheme: str) -> None:
    call: Callable[[str], object] = {**LOCAL, **BY_TENSORFLOW}[name]
    if name in BY_TENSORFLOW and scheme == "gs":
        call(f"{scheme}://bucket/run")
    else:
        known = ".*gs://" if name in BY_TENSORFLOW else " paths;"
        with pytest.raises(ArgumentError, match=rf"{name} .*local{known}.*{scheme}://bucket/run"):
            call(f"{scheme}://bucket/run")


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_loop_refuses_before_it_computes(method: str, strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    too_late = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: pytest.fail("too late"))
    too_late.on_test_begin = too_late.on_train_begin
    data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :1])).batch(2)

    class Own(keras.callbacks.ModelCheckpoint):  # type: ignore[name-defined, misc]
        pass

    with pytest.raises(ArgumentError, match=r"Own .*docs/watching\.md"):
        getattr(loop, method)(data, callbacks=[too_late, [Own("s3://bucket/best.keras")]])


def test_all_workers_refuse(strategy_of: Any, monkeypatch: Any) -> None:
    from mirrorkit.train.loop import callbacks

    monkeypatch.setattr(callbacks, "is_chief", lambda strategy: False)
    test_a_loop_refuses_before_it_computes("fit", strategy_of)


def test_other_addresses_of_a_callback_are_its_own_affair() -> None:
    class Uploads(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        address = "s3://bucket/run"

    class Elsewhere(keras.callbacks.ModelCheckpoint):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            keras.callbacks.Callback.__init__(self)

    require_writable([Uploads(), Elsewhere(), keras.callbacks.RemoteMonitor("http://localhost:9000")])
    require_local("A path", "C:/runs")
    require_local("A path", "runs/s3:/b")


def test_the_doctor_writes_to_an_address_and_leaves_nothing() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")
    (found,) = storage.checkpoints("memory://doctor/runs")
    assert (found.status, found.name) == ("ok", "checkpoints")
    assert found.found == "memory://doctor/runs: an object was written and removed"
    assert not fsspec.filesystem("memory").find("/doctor")
