"""Errors of TensorFlow within a call, and of data that is damaged: explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import ClusterError, DataError, MirrorkitError, StepError
from mirrorkit.train.calls import errors

L = keras.layers
IMAGES = {  # what is done with a file of these contents, and words of the reason
    "fit": (tf.io.encode_jpeg(np.zeros((40, 40, 3), np.uint8)).numpy()[:200], "Invalid JPEG data"),
    "evaluate": (b"", "Input is empty|Unknown image file format"),
    "predict": (None, "No such file"),
}


@pytest.fixture(scope="module")
def pictures(strategy_of: Callable[..., Any]) -> mk.train.Loop:
    """A classifier of small pictures, compiled once."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((6, 5, 3)), L.Flatten(), L.Dense(3)]), keras.optimizers.SGD()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.slow] * (t != "fit")) for t in IMAGES])
def test_an_image(task: str, tmp_path: Path, pictures: mk.train.Loop) -> None:
    content, words = IMAGES[task]
    paths = [str(tmp_path / f"{i} [x].png") for i in range(9)]
    for path in paths:
        Path(path).write_bytes(tf.io.encode_png(np.zeros((6, 5, 3), np.uint8)).numpy())
    recipe = mk.data.image_folder(paths, labels=np.arange(9) % 3, image_size=(6, 5), global_batch_size=2)
    Path(paths[8]).unlink()  # in the last batch
    if content is not None:
        Path(paths[8]).write_bytes(content)
    with pytest.raises(DataError, match="skip_corrupt=True") as raised:
        getattr(pictures, task)(recipe)
    message = str(raised.value)
    assert message.startswith(f"{paths[8]} cannot be read, or decoded as an image: ")
    assert any(word in message for word in words.split("|"))
    assert message.splitlines()[1].startswith("(The data raised this in batch 4")


def test_a_changed_byte_in_a_shard(line: Any, numbers: Any, tmp_path: Path) -> None:
    mk.data.write_records(mk.data.arrays(*numbers), tmp_path, num_files=3)
    shard = tmp_path / "data-00001-of-00003.tfrecord"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    recipe = mk.data.records(tmp_path, global_batch_size=20)
    recipe.verify()
    shard.write_bytes(content)
    for read in (line.fit, line.evaluate, line.predict, lambda data: data.verify()):
        with pytest.raises(DataError, match=rf"{shard.name} is cut short or damaged"):
            read(recipe)


@pytest.mark.parametrize("damage", ["1 values are missing in the column 'real'", "is damaged, or cannot be read"])
def test_a_parquet_file(damage: str, tmp_path: Path, make_loop: Any) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def net() -> Any:
        real = keras.Input((1,), name="real")
        return keras.Model({"real": real}, L.Dense(1)(real))

    path, values = tmp_path / "a.parquet", list(np.random.default_rng(0).normal(size=400))
    if "missing" in damage:
        values[350] = None
    columns = {"real": arrow.array(values, arrow.float64()), "label": np.arange(400) % 3}
    parquet.write_table(arrow.table(columns), path, write_statistics=False)
    recipe = mk.data.parquet(path, x=["real"], y="label", global_batch_size=50)
    if "damaged" in damage:
        content = bytearray(path.read_bytes())
        content[20:3000] = bytes(2980)
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}.*{damage}") as raised:
        make_loop(("mirrored", 2), net).fit(recipe, verbose=0)
    message = str(raised.value)
    assert "Traceback" not in message
    assert "errors.DataError" not in message
    _, at = message.splitlines()
    assert at.startswith("(The data raised this")


# --- what is said of an error that comes from other tasks, or may; and of batches that code does not take


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
    with pytest.raises(StepError, match=r"cannot be run on 32 rows .*Fixed.*not from a constant batch size") as raised:
        _fixed(make_loop, ("mirrored", 2)).fit(numbers[0][:32], numbers[1][:32], batch_size=32, verbose=0)
    assert len(str(raised.value).splitlines()) == 1
