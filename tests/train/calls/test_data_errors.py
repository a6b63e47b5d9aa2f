"""What the data raised or held: named in a few lines, the user's own words first, with the batch and the cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.arange(64) % 4
SPEC = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))
OPEN = (tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int64))


class OwnError(Exception):
    """A kind of the user's own."""


def dataset(*batches: Any, spec: Any = SPEC) -> tf.data.Dataset:
    """Give batches, an error where one stands among them."""

    def generate() -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    return tf.data.Dataset.from_generator(generate, output_signature=spec)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def loop(make_loop: Callable[..., Any]) -> mk.train.Loop:
    """A linear classifier of four classes on two replicas, three steps per call."""
    return make_loop(("mirrored", 2), lambda: sequential((8,), L.Dense(4)), loss=LOSS)


GOOD = (X[:16], Y[:16])


def message_of(loop: mk.train.Loop, what: str, data: Any) -> str:
    options = {"verbose": 0} if what == "fit" else {}
    with pytest.raises(MirrorkitError) as raised:
        getattr(loop, what)(data, **options)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None  # not TensorFlow's hundred lines
    return str(raised.value)


@pytest.mark.parametrize(
    ("what", "error"),
    [("fit", ValueError("bad file 7")), ("evaluate", OSError("two\n\nlines")), ("predict", OwnError("my own"))],
    ids=repr,
)
def test_what_a_generator_raises_comes_first(loop: Any, what: str, error: Exception) -> None:
    text = message_of(loop, what, dataset(*[GOOD] * 4, error))
    # An evaluation is one call of many batches, and the first one may have been looked at before.
    where = "one of the batches (3 to 5|4 to 6) of an evaluation" if what == "evaluate" else "batch 4"
    assert text.removeprefix("test_data_errors.").startswith(f"{type(error).__name__}: {error}\n(")
    assert re.search(rf"test_data_errors.py, line \d+, in generate, raised this in {where} .counted from 0.", text)
    assert len(text.splitlines()) <= 4


def test_an_error_of_mirrorkit_says_itself_where_it_comes_from(loop: Any) -> None:
    text = message_of(loop, "fit", dataset(*[GOOD] * 4, mk.errors.DataError("Item 7 is bad.")))
    assert text == "Item 7 is bad.\n(The data raised this in batch 4 (counted from 0).)"
    text = message_of(loop, "fit", dataset(OwnError("at once")))  # the first batch, which is looked at before
    assert text.startswith("test_data_errors.OwnError: at once\n")


@pytest.mark.parametrize("what", ["fit", "predict"])
def test_fewer_batches_than_were_asserted(loop: Any, what: str) -> None:
    data = dataset(GOOD, GOOD).apply(tf.data.experimental.assert_cardinality(5))
    assert "asserts that it has 5 elements, and has 2." in message_of(loop, what, data)


def test_what_a_map_raises_comes_first(loop: Any) -> None:
    def own(x: Any) -> Any:
        raise OwnError("my own")

    def mapped(x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.ensure_shape(tf.py_function(own, [x], tf.float32), x.shape), y

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    assert message_of(loop, "fit", data.map(mapped)).startswith("test_data_errors.OwnError: my own\n(")
    recipe = mk.data.batches(mk.data.arrays(X, Y), global_batch_size=16, map=mapped)
    assert message_of(loop, "fit", recipe).startswith("test_data_errors.OwnError: my own\n(")

    def read(x: tf.Tensor, y: tf.Tensor) -> Any:
        return x + tf.cast(tf.strings.length(tf.io.read_file("/nowhere/x.png")), tf.float32), y

    assert message_of(loop, "fit", data.map(read)).startswith("/nowhere/x.png; No such file")


def test_a_batch_of_another_shape_is_named(loop: Any) -> None:
    other = (X[:16, :4], Y[:16])
    text = message_of(loop, "fit", dataset(GOOD, GOOD, other))
    assert text.startswith("TypeError: `generator` yielded an element of shape (16, 4) where an element of shape (None")
    assert "in batch 2 (counted" in text
    for what in ("fit", "evaluate"):
        text = message_of(loop, what, dataset(GOOD, GOOD, other, spec=OPEN))
        assert "An input of the model has the shape [" in text
        assert ",4]" in text
        assert "the model takes [?,8]" in text
    loop.fit(dataset(GOOD, GOOD, spec=OPEN), verbose=0)


ROWS = "found different numbers of rows: component [0] has 16, component [1] has {}. Look at how"


def test_components_of_other_numbers_of_rows_are_named(loop: Any) -> None:
    def data(bad: int, n: int = 5, *, known: bool = False) -> tf.data.Dataset:
        made = dataset(*[(X[:16], Y[: 15 if i == bad else 16]) for i in range(n)])
        return made.apply(tf.data.experimental.assert_cardinality(n)) if known else made

    for what, bad, known in (("fit", 0, False), ("fit", 4, True), ("evaluate", 4, False), ("predict", 4, True)):
        text = message_of(loop, what, data(bad, known=known))
        assert ROWS.format(15) in text
        assert f"(Batch {bad}, counted from 0.)" in text
    with pytest.raises(MirrorkitError, match="Batch 3,"):
        loop.fit(data(-1), validation_data=data(3), verbose=0)


def test_one_row_is_not_broadcast(make_loop: Any) -> None:
    line = make_loop(("mirrored", 2), lambda: sequential((8,), L.Dense(1)))
    spec = (SPEC[0], tf.TensorSpec([None, 1], tf.float32))
    good, one = (X[:16], np.ones((16, 1))), (X[:16], np.ones((1, 1)))
    assert ROWS.format(1) in message_of(line, "fit", dataset(good, good, one, spec=spec))

    @tf.function(input_signature=[spec], autograph=False)
    def own_loop(batch: Any) -> Any:
        return line.step.update(line.strategy, line.strategy.run(line.step.compute, args=(batch,)))

    own_loop(good)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a row for each example"):
        own_loop(one)


def test_rows_that_a_recipe_does_not_have_are_named(loop: Any) -> None:
    def cut(x: tf.Tensor, y: tf.Tensor) -> Any:  # in the last batch, which no check of a map sees
        return x, (y % 4)[: tf.where(tf.reduce_any(y == 49), 15, 16)]

    recipe = mk.data.batches(mk.data.arrays(X, np.arange(64)), global_batch_size=16, map=cut)
    text = message_of(loop, "evaluate", recipe)
    assert "Component [1] of a batch has 15 rows in" in text
    assert "its recipe says 16 examples" in text


@pytest.mark.parametrize("label", [-1, pytest.param(2**40, marks=pytest.mark.slow)])
def test_a_label_that_is_none_is_named(loop: Any, label: int) -> None:
    bad = np.where(np.arange(16) == 15, label, Y[:16])  # of the last replica, and none hangs
    for what, where in (
        ("fit", r"batch (\d) or (\d)"),
        ("evaluate", r"one of the batches (\d) to (\d) of an evaluation"),  # how many a call takes, depends on its time
    ):
        text = message_of(loop, what, dataset(*[GOOD] * 4, (X[:16], bad)))
        assert f"is {label}; the loss takes whole numbers from 0 to 3" in text
        found = re.search(rf"A label in {where} \(counted from 0\)", text)
        assert found, text
        assert int(found[1]) <= 4 <= int(found[2])
        assert "ignore_class" in text
        assert len(text.splitlines()) == 1


def test_an_index_that_an_embedding_does_not_have_is_named(make_loop: Any) -> None:
    words = make_loop(("mirrored", 2), lambda: sequential((3,), L.Embedding(5, 4), L.Flatten(), L.Dense(1)))
    tokens = np.arange(30, dtype=np.int32).reshape(10, 3) % 5
    tokens[7, 1] = 99
    data = mk.data.batches(mk.data.arrays(tokens, np.zeros((10, 1), np.float32)), global_batch_size=4)
    text = message_of(words, "fit", data)
    assert "An index in batch" in text
    assert "is 99, but there are 5 entries" in text
    assert "embedding" in text


@pytest.mark.parametrize("shape", [(32,), (32, 3)], ids=str)
def test_text_for_a_model_of_numbers_is_named(shape: Any, make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((3,), L.Dense(1)))
    words = np.full(shape, "cat")
    for what, data in (("fit", (words, np.zeros(32))), ("evaluate", (words, np.zeros(32))), ("predict", words)):
        text = message_of(loop, what, tf.data.Dataset.from_tensor_slices(data).batch(16))
        assert text.startswith("The data yields text ")
        assert "where the model takes float32 (None, 3)" in text


def test_text_that_a_model_does_not_take_is_left_out_as_in_keras(make_loop: Any) -> None:
    def net() -> Any:
        x = keras.Input((3,), name="x")
        return keras.Model([x], L.Dense(1)(x))

    x = np.ones((32, 3), np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"id": np.full(32, "cat"), "x": x}, np.zeros(32))).batch(16)
    loop = make_loop(("mirrored", 2), net)
    loss = loop.evaluate(data)["loss"]
    assert loss == pytest.approx(float(np.mean(loop.step.model.predict(x, verbose=0) ** 2)), rel=1e-5)


@pytest.mark.cannot_compare
def test_targets_that_are_text_are_named(make_loop: Any) -> None:
    line = make_loop(("mirrored", 2), lambda: sequential((3,), L.Dense(1)))
    words = tf.data.Dataset.from_tensor_slices((np.ones((32, 3), "float32"), ["cat", "dog"] * 16)).batch(16)
    text = message_of(line, "evaluate", words)
    assert text.startswith("A tensor of the data is text in ")
    assert "StringLookup" in text


EMPTY = (X[:0], Y[:0])


def test_a_pass_over_batches_without_rows_is_refused(loop: Any) -> None:
    for what in ("fit", "evaluate", "predict"):
        assert "All batches of the data are empty" in message_of(loop, what, dataset(EMPTY, EMPTY))
    with pytest.raises(StepError, match="are empty"):
        loop.fit(dataset(GOOD), validation_data=dataset(EMPTY), verbose=0)


def test_a_batch_without_rows_among_others_is_none(loop: Any) -> None:
    assert loop.evaluate(dataset(GOOD, EMPTY, GOOD)) == pytest.approx(loop.evaluate(dataset(GOOD, GOOD)))
    assert len(loop.predict(dataset(GOOD, EMPTY, GOOD))) == 32
    assert loop.fit(dataset(GOOD, EMPTY), verbose=0).history["loss"][0] > 0


def test_shares_that_kerass_own_evaluate_cannot_take_are_named(make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((8,), L.Dense(4)), loss=LOSS)

    class Evaluates(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.evaluate(X[:15], Y[:15], verbose=0)

    data = tf.data.Dataset.from_tensors(GOOD)
    with pytest.raises(MirrorkitError, match="Keras's own evaluate, in a callback"):
        loop.fit(data, callbacks=[Evaluates()], verbose=0)


# --- damaged data, and errors of TensorFlow within a call


IMAGES = {  # what is done with a file of these contents, and words of the reason
    "fit": (tf.io.encode_jpeg(np.zeros((40, 40, 3), np.uint8)).numpy()[:200], "Invalid JPEG data"),
    "evaluate": (b"", "Input is empty|Unknown image file format"),
    "predict": (None, "No such file"),
}


@pytest.fixture(scope="module")
def pictures(make_loop: Callable[..., Any]) -> mk.train.Loop:
    """A classifier of small pictures, compiled once."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net = lambda: sequential((6, 5, 3), L.Flatten(), L.Dense(3))  # noqa: E731
    return make_loop(("mirrored", 2), net, loss=loss, steps_per_call="auto")


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.slow] * (t != "fit")) for t in IMAGES])
def test_an_image(task: str, tmp_path: Path, pictures: mk.train.Loop) -> None:
    content, words = IMAGES[task]
    paths = [str(tmp_path / f"{i} [x].png") for i in range(9)]
    for i, path in enumerate(paths):
        Path(path).write_bytes(tf.io.encode_png(np.full((6, 5, 3), i, np.uint8)).numpy())
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
