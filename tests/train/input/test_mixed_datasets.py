"""Datasets in forms that are not everyday: of several datasets, with None, and waiting when a script ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import THREE, assert_same_logs, keras_twin, line_net, plain_dataset, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import HostIterator

# --- pipelines that users write train as in Keras's `fit`

D, U, L = tf.data.Dataset, keras.utils, keras.layers
X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = 0.5 * X[:, :1] + 0.1
OPTIONS = tf.data.Options()
OPTIONS.deterministic, OPTIONS.autotune.enabled, OPTIONS.threading.private_threadpool_size = False, True, 2


def _window(x: Any, y: Any) -> Any:
    """Three numbers, and the next one."""
    return x.batch(4).map(lambda x: (tf.reshape(x[:3, 0], [3]), tf.reshape(x[3, 0], [1])))


def _by_sign(x: Any, y: Any) -> Any:
    return tf.cast(x[0] > 0, "int64")


def _scaled(number: Any, example: Any) -> Any:
    return example[0] * tf.cast(number % 3, "float32"), example[1]


# of single examples, which are batched by 12
EXAMPLES: dict[str, Callable[[Any], Any]] = {
    "sample_from_datasets": lambda data: D.sample_from_datasets([data, data.repeat()], [0.5, 0.5], seed=1),
    "interleave": lambda data: D.range(3).interleave(lambda i: data.shard(3, i), 2, 3, num_parallel_calls=2),
    "window": lambda data: data.window(4, shift=1, drop_remainder=True).flat_map(_window),
    "zip": lambda data: D.zip((data.map(lambda x, y: x), data.map(lambda x, y: y))),
    "rejection_resample": lambda data: data.rejection_resample(_by_sign, [0.5, 0.5], seed=3).map(lambda _, e: e),
    "from_generator": lambda data: D.from_generator(lambda: zip(X, Y, strict=True), output_signature=data.element_spec),
    "from_generator of known length": lambda data: EXAMPLES["from_generator"](data).apply(
        tf.data.experimental.assert_cardinality(60)
    ),
    "endless": lambda data: data.shuffle(60, seed=3).repeat(),
    "reshuffled": lambda data: data.shuffle(60),
    "shuffled once": lambda data: data.shuffle(60, seed=3, reshuffle_each_iteration=False),
    "filter": lambda data: data.filter(lambda x, y: x[0] > 0),
    "numpy_function": lambda data: data.map(lambda x, y: (tf.reshape(tf.numpy_function(np.sin, [x], x.dtype), [3]), y)),
    "scan": lambda data: data.scan(tf.zeros([3]), lambda sum, e: (sum + e[0], (sum / 10, e[1]))),
    "enumerate, as weights": lambda data: data.enumerate().map(lambda i, e: (*e, tf.cast(i % 3, "float32"))),
    "ignore_errors": lambda data: data.map(lambda x, y: (tf.debugging.check_numerics(x**0.5, ""), y)).ignore_errors(),
    "dicts": lambda data: data.map(lambda x, y: ({"b": y, "a": x, "id": "good"}, y)),
    "dicts of tuples": lambda data: data.map(lambda x, y: ({"b": y, "a": (x, y)}, (y, 2 * y))),
    "without targets": lambda data: data.map(lambda x, y: (x, None)),
    "counter": lambda data: D.zip((D.counter(), data.repeat())).map(_scaled),
    "random": lambda data: D.zip((D.random(seed=3), data.repeat())).map(_scaled),
    "options": lambda data: data.shard(2, 0).with_options(OPTIONS),
}


def _sequences() -> Any:
    """Of 1 to 8 numbers, and whether their count is odd."""
    counts = D.from_tensor_slices(np.random.default_rng(1).integers(1, 9, 40))
    return counts.map(lambda count: (tf.range(count), tf.cast([count % 2], "float32")))


def _files(folder: Path, ending: str, content: Callable[[int], Any]) -> dict[str, Any]:
    """Write twenty files in two classes; return arguments of Keras's functions that read them."""
    for number in range(20):
        path = folder / "ab"[number % 2] / f"{number}.{ending}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number).numpy())
    return {"directory": folder, "batch_size": 6, "seed": 1, "verbose": False}


def _csv(folder: Path) -> Any:
    np.savetxt(folder / "rows.csv", np.hstack([X, Y]), delimiter=",", header="a,b,c,y", comments="")
    return tf.data.experimental.make_csv_dataset(str(folder / "rows.csv"), 12, label_name="y", shuffle_seed=5)


BATCHES: dict[str, Callable[[Any, Path], Any]] = {
    "choose_from_datasets": lambda data, _: D.choose_from_datasets([data.batch(12)] * 2, D.range(2).repeat(60)),
    "concatenate": lambda data, _: data.batch(12).concatenate(data.batch(7)),
    "group_by_window": lambda data, _: data.group_by_window(_by_sign, lambda key, group: group.batch(7), 7),
    "unbatch and rebatch": lambda data, _: data.batch(7).unbatch().batch(5).rebatch([12, 4]),
    "noise after batch": lambda data, _: data.batch(12).map(lambda x, y: (x + tf.random.normal([3]), y)),
    "batches without rows": lambda data, _: data.batch(4).map(lambda x, y: (x[x[:, 0] > 1], y[x[:, 0] > 1])),
    "sparse to dense": lambda data, _: (
        data.batch(12).map(lambda x, y: (tf.sparse.from_dense(x), y)).map(lambda x, y: (tf.sparse.to_dense(x), y))
    ),
    "prefetch_to_device": lambda data, _: data.batch(12).apply(tf.data.experimental.prefetch_to_device("/cpu:0")),
    "a check at the tenth step": lambda data, _: data.batch(4),
    "padded_batch": lambda data, _: _sequences().padded_batch(8),
    "ragged to dense": lambda data, _: _sequences().ragged_batch(8).map(lambda x, y: (x.to_tensor(), y)),
    "bucket_by_sequence_length": lambda data, _: _sequences().bucket_by_sequence_length(
        lambda x, y: tf.size(x), [4], [5, 7]
    ),
    "snapshot": lambda data, folder: data.snapshot(str(folder)).batch(12),
    "cache in a file": lambda data, folder: data.cache(str(folder / "0")).shuffle(60, seed=3).batch(12),
    "save and load": lambda data, folder: data.save(str(folder)) or D.load(str(folder)).batch(12),
    "make_csv_dataset": lambda data, folder: _csv(folder).map(lambda x, y: (tf.stack([*x.values()], 1), y)),
    "timeseries_dataset_from_array": lambda data, _: U.timeseries_dataset_from_array(X, Y, 5, batch_size=12, seed=3),
    "image_dataset_from_directory": lambda data, folder: U.image_dataset_from_directory(
        **_files(folder, "png", lambda n: tf.io.encode_png((X[n, :, None, None] > 0).astype("uint8"))),
        image_size=(4, 4),
    ),
    "text_dataset_from_directory": lambda data, folder: U.text_dataset_from_directory(
        **_files(folder, "txt", lambda n: tf.constant(["good film", "bad", "a film"][n % 3]))
    ),
    "audio_dataset_from_directory": lambda data, folder: U.audio_dataset_from_directory(
        **_files(folder, "wav", lambda n: tf.audio.encode_wav(X[n, :, None] / 9, 8000))
    ).map(lambda x, y: (tf.ensure_shape(x, [None, None, 1]), y)),
}
FAST = {"sample_from_datasets", "reshuffled"}


def _features(x: Any) -> Any:
    if x.dtype == "string":
        x = L.TextVectorization(vocabulary=["good", "film"], output_sequence_length=2)(x)
    if "int" in x.dtype:
        x = L.Embedding(9, 2)(x)
    return L.GlobalAveragePooling1D()(x) if len(x.shape) == 3 else L.Flatten()(x)


def _compiled(x: Any, y: Any, *weights: Any) -> Any:
    """A net for batches of these specs; without targets it has a loss of its own."""
    inputs = keras.tree.map_structure(lambda spec: keras.Input(spec.shape[1:], dtype=spec.dtype.name), x)
    features = L.Concatenate()([_features(one) for one in keras.tree.flatten(inputs)])
    targets = [spec for spec in keras.tree.flatten(y) if isinstance(spec, tf.TensorSpec)]
    outputs = [L.Dense(1)(features) for _ in targets] or L.ActivityRegularization(0.1)(L.Dense(1)(features))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.01), "mse" if targets else None)
    return model


def _trained(form: str, folder: Path, strategy: Any, fit: Any) -> tuple[Any, Any]:
    """Train two epochs on a dataset that is made again; return the history and the weights."""
    folder.mkdir()
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    examples = D.from_tensor_slices((X, Y))
    data = BATCHES[form](examples, folder) if form in BATCHES else EXAMPLES[form](examples).batch(12)
    with strategy.scope():
        model = _compiled(*data.element_spec)
    # Keras alone is told how many batches there are, since else it passes over every other order of a shuffle.
    batches, is_keras = int(data.cardinality()), fit is keras.Model.fit
    steps = 4 if batches == tf.data.INFINITE_CARDINALITY else batches if is_keras and batches >= 0 else None
    return fit(model, data, epochs=2, steps_per_epoch=steps, verbose=0).history, model.get_weights()


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.slow] * (form not in FAST)) for form in [*EXAMPLES, *BATCHES]]
)
def test_it_trains_as_in_fit(form: str, strategy_of: Any, tmp_path: Path) -> None:
    expected, wanted = _trained(form, tmp_path / "0", tf.distribute.get_strategy(), keras.Model.fit)
    for where in (("one_device", 1), THREE):
        history, weights = _trained(form, tmp_path / where[0], strategy_of(*where), mk.fit)
        assert_same_logs(history, expected, rtol=2e-5, atol=1e-6)
        for one, other in zip(weights, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["ragged", "sparse", "dict"])
def test_batches_that_were_looked_at_are_as_they_were(kind: str) -> None:
    rows = {
        "ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]),
        "sparse": (tf.sparse.from_dense(np.eye(3)), np.arange(3)),
        "dict": {"a": np.arange(3), "b": np.zeros([3, 2])},
    }[kind]
    data = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    iterator = HostIterator(data, steps=None, size_of=lambda batch: None)
    iterator.look_at(2)
    assert iterator.element_spec == data.element_spec
    for number, expected in enumerate(data):
        parts = [tf.nest.flatten(nest, expand_composites=True) for nest in (iterator.read(number), expected)]
        for one, other in zip(*parts, strict=True):
            np.testing.assert_array_equal(one, other)
    assert iterator.read(2) is None


# --- batches that end in None, which Keras takes for targets and sample weights that are not there


def _unweighted(x: Any, y: Any) -> Any:
    return x, y, None


def test_no_sample_weights(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, metrics=["mae"], weighted_metrics=["mse"])
    first, theirs = values_of(loop), plain_dataset(*numbers, batch=20).map(_unweighted)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mse"])
    expected = model.fit(theirs, epochs=2, validation_data=theirs, verbose=0).history
    outputs = model.predict(numbers[0], verbose=0)
    for ours in (theirs, mk.data.resident(mk.data.arrays(*numbers), global_batch_size=20, map=_unweighted)):
        set_values(loop, first)
        loop.warm_up(ours)
        found = loop.fit(ours, epochs=2, validation_data=ours, verbose=0, callbacks=[mk.checks.NanWatch()]).history
        assert_same_logs(found, expected, rtol=1e-5)
        np.testing.assert_allclose(loop.predict(ours), outputs, rtol=1e-4, atol=1e-5)


def test_no_targets_to_predict(line: Any, numbers: Any) -> None:
    plain = plain_dataset(numbers[0], batch=20)
    expected = line.predict(plain)
    for batches in (plain.map(lambda x: (x, None)), plain.map(lambda x: (x, None, None))):
        np.testing.assert_array_equal(line.predict(batches), expected)


def test_class_weights(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], np.zeros([60, 1], "int64"), batch=20)
    make_loop(("mirrored", 2), line_net).fit(data.map(_unweighted), class_weight={0: 2.0}, verbose=0)


def test_a_custom_loop_and_a_check(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, batch=20).map(_unweighted)
    loop = make_loop(("mirrored", 2), line_net)
    assert [len(batch) for batch in mk.data.distribute(data, loop.strategy)] == [2, 2, 2]
    assert mk.checks.find_non_finite(loop, next(iter(data))) is None


@pytest.mark.parametrize(
    "spoil", [lambda x, y: (x, None, y[:, 0]), lambda x, y: ({"a": x, "b": None}, y)], ids=["targets", "inputs"]
)
def test_none_elsewhere_is_refused_by_name(spoil: Any, line: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match="may end in None"):
        line.fit(plain_dataset(*numbers, batch=20).map(spoil))


# --- A script ends although tf.data is waiting for an element from Python


ITEMS = """
import time

import numpy as np


class Slow:
    def __len__(self):
        return 2400

    def __getitem__(self, number):
        time.sleep(0.01)
        return np.ones(8, "float32"), 1


def generated():
    for number in range(2400):
        yield Slow()[number]
"""
SCRIPT = """
import keras
import slow_items
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("one_device", devices="cpu:1")
with strategy.scope():
    model, optimizer = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]), keras.optimizers.SGD(0.1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=1)
spec = tf.TensorSpec((8,)), tf.TensorSpec((), tf.int64)
generator = tf.data.Dataset.from_generator(slow_items.generated, output_signature=spec).batch(12).prefetch(3)
loop.fit(generator, steps_per_epoch=3, verbose=0)
served = mk.data.source(slow_items.Slow(), global_batch_size=12, processes=2)
loop.fit(served, steps_per_epoch=3, verbose=0)
print("trained", flush=True)
"""


@pytest.mark.slow
def test_with_batches_under_way(tmp_path: Path, run_python: Any) -> None:
    """Of a generator, and of processes that serve items."""
    (tmp_path / "slow_items.py").write_text(ITEMS)
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r})\n{SCRIPT}", timeout=60)
    assert done.stdout.split()[-1] == "trained"
