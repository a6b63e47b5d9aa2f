"""Exported models load in a fresh process, without mirrorkit and without a strategy, and predict the same."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import line_net, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import FileError, StepError
from mirrorkit.train import exporting

L = keras.layers

CUSTOM_LAYER = """
import keras

@keras.saving.register_keras_serializable("export_test")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""


class Thrice(L.Layer):
    """Not registered, and made from something that no configuration holds."""

    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


class Looked(L.Layer):
    """Looks numbers up in a table, which it has as an attribute, or in a list."""

    def __init__(self, *, in_list: bool) -> None:
        super().__init__()
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2]), tf.constant([10.0, 20.0]))
        table = tf.lookup.StaticHashTable(pairs, -1.0)
        self.held = [table] if in_list else table

    def call(self, x: Any) -> Any:
        table = self.held[0] if isinstance(self.held, list) else self.held
        return table.lookup(tf.cast(x, tf.int32))


class Own(keras.Model):
    """A subclassed model, which does not say what its inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = L.BatchNormalization(), L.Dense(1)

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        self.head.build(shape)

    def call(self, x: Any) -> Any:  # without `training`, as Keras allows
        return self.head(self.inner(x))


def own() -> Any:
    model = Own()
    model.build((None, 4))
    return model


def image_net() -> Any:
    """Everything that behaves differently in training, and seeds."""
    layers = [L.RandomFlip(), L.Flatten(), L.Dense(4), L.BatchNormalization(), L.Dropout(0.5), L.Dense(3)]
    return sequential((8, 8, 3), *layers)


def two_inputs() -> Any:
    """A dict of inputs, a dict of outputs, mixed precision."""
    policy = "mixed_bfloat16"
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    x = L.BatchNormalization(dtype=policy)(L.Dense(5, dtype=policy)(L.Concatenate()([a, b])))
    outputs = {"u": L.Dense(2, dtype="float32", name="u")(x), "v": L.Dense(1, dtype="float32", name="v")(x)}
    return keras.Model({"a": a, "b": b}, outputs)


def with_words() -> Any:
    words = L.StringLookup()
    words.adapt(["a", "b", "c"])
    inputs = keras.Input((1,), dtype="string")
    return keras.Model(inputs, L.Dense(2)(L.Embedding(5, 3)(words(inputs))))


def custom(layer: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: sequential((4,), L.Dense(2), layer(), L.Dense(1))


def mean_loss(y: Any, y_pred: Any) -> Any:  # not registered with Keras: nothing of it may be in the file
    return tf.reduce_mean(tf.square(y - y_pred), -1)


@pytest.mark.slow
def test_a_new_process_predicts_the_same(strategy_of: Any, run_python: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(24, 8, 8, 3)).astype("float32")
    numbers = rng.normal(size=(24, 4)).astype("float32")
    scope: dict[str, Any] = {}
    exec(CUSTOM_LAYER, scope)
    (tmp_path / "twice_layer.py").write_text(CUSTOM_LAYER)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = image_net(), keras.optimizers.Adam(0.01)
        models = {
            "two": (two_inputs(), {"a": numbers, "b": numbers[:, :3]}),
            "words": (with_words(), np.array([["a"], ["c"], ["other"]])),
            "own": (own(), numbers),
            "twice": (custom(scope["Twice"])(), numbers),
            "thrice": (custom(lambda: Thrice(tf.sin))(), numbers),
        }
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=mean_loss, ema=0.9), steps_per_call=3)
    loop.fit(tf.data.Dataset.from_tensor_slices((images, images[:, 0, 0])).batch(8), epochs=2, verbose=0)

    def export(name: str, of: Any, model: Any, inputs: Any, **options: Any) -> None:
        arrays = inputs if isinstance(inputs, dict) else {"x": inputs}
        expected = tf.nest.flatten(model(tf.nest.map_structure(tf.constant, inputs), training=False))
        np.savez(tmp_path / f"{name}.npz", *[value.numpy() for value in expected], **arrays)
        if name not in ("thrice", "own"):  # which are refused, see below
            mk.train.export(of, tmp_path / f"{name}.keras", **options)
        if name == "own":
            options["input_signature"] = tf.TensorSpec([None, 4], tf.float32)
        mk.train.export(of, tmp_path / name, **options)

    export("trained", loop, model, images)
    with loop.step.averaged():
        averages = image_net()
        averages.set_weights(model.get_weights())
    export("averaged", loop.step, averages, images, averaged=True)
    for name, (one, inputs) in models.items():
        export(name, one, one, inputs)

    differences = run_python(
        f"""
        import json, pathlib, sys
        import numpy as np, tensorflow as tf, keras
        folder = pathlib.Path({str(tmp_path)!r})
        sys.path.append(str(folder))
        import twice_layer
        differences = {{}}
        for file in sorted(folder.glob("*.npz")):
            with np.load(file) as arrays:
                arrays = dict(arrays)
            expected = [arrays.pop(name) for name in sorted(arrays) if name.startswith("arr_")]
            x = tf.nest.map_structure(tf.constant, arrays if len(arrays) > 1 else arrays["x"])
            served = tf.saved_model.load(str(folder / file.stem))
            predictions = {{file.stem: served.serve(x)}}
            if file.with_suffix(".keras").exists():
                model = keras.saving.load_model(file.with_suffix(".keras"))
                assert not model.compiled
                predictions[file.stem + ".keras"] = model(x, training=False)
            for kind, found in predictions.items():
                pairs = zip(tf.nest.flatten(found), expected, strict=True)
                differences[kind] = float(max(np.abs(one.numpy() - other).max() for one, other in pairs))
        assert "mirrorkit" not in sys.modules
        print(json.dumps(differences))
        """
    ).json()
    folders = ["trained", "averaged", *models]
    files = [f"{name}.keras" for name in folders if name not in ("thrice", "own")]
    assert sorted(differences) == sorted([*folders, *files])
    assert max(differences.values()) <= 1e-6, differences


@pytest.fixture(scope="module")
def trained(make_loop: Any, numbers: Any) -> mk.train.Loop:
    """A loop whose weights, averages, statistics and seeds have all moved; leave it as it is."""
    net = lambda: sequential((4,), L.Dense(4), L.BatchNormalization(), L.Dropout(0.5), L.Dense(1))  # noqa: E731
    loop = make_loop(("mirrored", 2), net, ema=0.5)
    loop.fit(tf.data.Dataset.from_tensor_slices(numbers).batch(12), verbose=0)
    return loop


@pytest.mark.slow
def test_a_keras_file_holds_every_weight_and_training_goes_on_undisturbed(trained: Any, tmp_path: Path) -> None:
    model = trained.step.model
    before = [v.numpy() for v in trained.step.variables]
    states = random.getstate(), np.random.get_state()[1].tolist()
    with trained.strategy.scope():  # as a user may well do
        mk.train.export(trained, tmp_path / "m.keras")
        mk.train.export(trained, tmp_path / "m")
    assert states == (random.getstate(), np.random.get_state()[1].tolist())
    for old, new in zip(before, trained.step.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    served = tf.saved_model.load(str(tmp_path / "m"))
    assert len(served.variables) == len(model.variables)
    for old, new in zip(model.variables, loaded.variables, strict=True):
        assert type(new.value).__name__ == "ResourceVariable"  # of one device
        if "seed" not in new.path:  # no Keras file holds those
            np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_averages_are_other_weights(trained: Any, tmp_path: Path) -> None:
    paths = [mk.train.export(trained, tmp_path / f"{a}.keras", averaged=a) for a in (False, True)]
    weights, averages = (keras.saving.load_model(path).trainable_variables for path in paths)
    assert np.abs(weights[0].numpy() - averages[0].numpy()).max() > 1e-4


def test_only_the_chief_writes(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "is_chief", lambda strategy: False)
    assert mk.train.export(trained, tmp_path / "m.keras") == tmp_path / "m.keras"
    assert not list(tmp_path.iterdir())


def _half(self: Any, path: Any, **options: Any) -> None:
    Path(path).with_suffix(".part").write_text("half")
    raise OSError(28, "No space left on device")


def _not_renamed(one: Any, other: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "owner", "write", "rename"),
    [("m.keras", keras.Model, "save", "replace"), ("m", type(keras.export.ExportArchive()), "write_out", "rename")],
    ids=["m.keras", "m"],
)
def test_an_old_export_is_replaced_when_the_new_one_is_whole(
    name: str, owner: Any, write: str, rename: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mk.train.export(trained, tmp_path / "made" / name)
    other = line_net()

    def contents() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in sorted(path.parent.rglob("*")) if file.is_file()}

    whole = contents()
    for of, attribute, broken in ((owner, write, _half), (os, rename, _not_renamed)):
        with monkeypatch.context() as patch:
            patch.setattr(of, attribute, broken)
            with pytest.raises(FileError, match=r"No space left on device.*as it was"):
                mk.train.export(other, path)
            assert contents() == whole
    mk.train.export(other, path)
    assert contents() != whole
    assert [entry.name for entry in path.parent.iterdir()] == [name]


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("m.h5", r"\.h5 is not written.*\.keras"),
        ("folder.keras", "is a folder"),
        ("results", "'results' .*'table.csv'"),
        ("run", "'run' .*'step-0000000004.npz'"),
        ("values", "'values' .*'variables/notes.txt'"),
        ("notes.txt", "'notes.txt' .*'a file'"),
        ("notes.txt/m.keras", "Nothing could be written"),
    ],
)
def test_paths_that_cannot_be_written(path: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.csv").write_text("1")
    (tmp_path / "notes.txt").write_text("dear")
    for other in ("run/step-0000000004.npz", "values/variables/notes.txt"):
        (tmp_path / other).parent.mkdir(parents=True)
        (tmp_path / other).write_text("mine")
        (tmp_path / other.partition("/")[0] / "saved_model.pb").write_text("a model")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError if match.startswith("Nothing") else StepError, match=match):
        mk.train.export(line_net(), path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_comes_into_the_folder_while_the_model_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mk.train.export(line_net(), tmp_path / "m")
    write = exporting._write_saved_model

    def slow(*args: Any) -> None:
        write(*args)
        (path / "notes.txt").write_text("mine")

    monkeypatch.setattr(exporting, "_write_saved_model", slow)
    before = (path / "saved_model.pb").read_bytes()
    with pytest.raises(StepError, match=r"'notes\.txt'"):
        mk.train.export(line_net(), path)
    assert (path / "notes.txt").read_text() == "mine"
    assert (path / "saved_model.pb").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def nested_in_function() -> Any:
    return sequential((4,), sequential((4,), Thrice(tf.sin, name="deep")), L.Dense(1))


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (custom(lambda: Thrice(tf.sin, name="mine")), r"layer 'mine' \(Thrice\).*register"),
        (nested_in_function, r"layer 'deep' \(Thrice\)"),
        (custom(lambda: L.Lambda(lambda x: x + 1, name="plus")), r"layer 'plus' \(Lambda\)"),
        (lambda: sequential((4,), L.Dense(1, activation=mean_loss, name="odd")), r"layer 'odd' \(Dense\)"),
        (own, r"\(Own\).*register"),
    ],
    ids=["custom", "nested", "lambda", "function", "subclass"],
)
def test_what_a_keras_file_cannot_hold_is_named(net: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=match):
        mk.train.export(net(), tmp_path / "m.keras")
    assert not list(tmp_path.iterdir())


def test_a_saved_model_holds_the_tables_of_layers(tmp_path: Path) -> None:
    mk.train.export(sequential((2,), Looked(in_list=False)), tmp_path / "m")
    served = tf.saved_model.load(str(tmp_path / "m"))
    assert served.serve(tf.constant([[2.0, 3.0]])).numpy().tolist() == [[20.0, -1.0]]


class WordsInAList(keras.Model):
    """A layer with a table in a list of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [L.StringLookup(vocabulary=["a", "b"]), L.Embedding(4, 2)]

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


def test_a_saved_model_holds_the_tables_of_layers_in_a_list(tmp_path: Path) -> None:
    model, words = WordsInAList(), tf.constant([["a", "b", "other"]])
    expected = model(words)
    mk.train.export(model, tmp_path / "m", input_signature=tf.TensorSpec([None, 3], tf.string))
    served = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(served.serve(words), expected)


def test_what_cannot_be_exported(trained: Any, line: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    model = trained.step.model
    for call, match in (
        (lambda: mk.train.export("model", path), "found str"),
        (
            lambda: mk.train.export(SimpleNamespace(build=None, generator=model), path),
            r"has one as `model`; found Simple",
        ),
        (lambda: mk.train.export(keras.Sequential([L.Dense(1)]), path), "not built"),
        (lambda: mk.train.export(model, path, averaged=True), r"export\(step"),
        (lambda: mk.train.export(line, path, averaged=True), r"keeps no averages.*ema"),
        (lambda: mk.train.export(own(), tmp_path / "m"), r"\(Own\) .*input_signature="),
        (lambda: mk.train.export(sequential((2,), Looked(in_list=True)), tmp_path / "m"), "computes with a table"),
    ):
        with pytest.raises(StepError, match=match):
            call()
    assert not list(tmp_path.iterdir())
