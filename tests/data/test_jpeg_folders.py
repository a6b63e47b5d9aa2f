"""A folder of JPEG files, real ones too, gives the rows of the decoded images, and the training on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import assert_same, assert_workers_read_the_same, collect, joined

import mirrorkit as mk
from mirrorkit import data
from mirrorkit._keras import keras

COUNT, SIZE = 300, (32, 32)


def drawn() -> Iterator[tuple[bytes, int]]:
    split = data.synthetic((*SIZE, 3), train=COUNT, test=1).train
    for image, label in zip(split.images, split.labels, strict=True):
        yield tf.io.encode_jpeg(image, quality=75).numpy(), int(label)


def of_cifar(shards: Path) -> Iterator[tuple[bytes, int]]:
    files = tf.data.TFRecordDataset(sorted(map(str, shards.glob("test-*"))), "GZIP")
    for record in files.take(COUNT):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        yield feature["image/encoded"].bytes_list.value[0], feature["image/class/label"].int64_list.value[0]


@pytest.fixture(scope="module", params=["drawn", pytest.param("cifar10", marks=pytest.mark.slow)])
def folder(request, tmp_path_factory) -> Path:
    """A folder for each class."""
    folder = tmp_path_factory.mktemp("images")
    jpegs = drawn() if request.param == "drawn" else of_cifar(request.getfixturevalue("cifar_shards"))
    for number, (content, label) in enumerate(jpegs):
        file = folder / f"class{label}" / f"{number:03}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def split(folder) -> data.Split:
    """The files, decoded by themselves, class by class."""
    files = sorted(folder.glob("class*/*.jpg"))
    images = [tf.io.decode_jpeg(file.read_bytes(), channels=3).numpy() for file in files]
    return data.arrays(np.stack(images), [int(file.parent.name[-1]) for file in files])


def recipes(folder: Path, split: data.Split, **options: Any) -> list[data.Recipe]:
    options = {"global_batch_size": 64, "augment": [data.augment.flip(), data.augment.pad_and_crop(4)], **options}
    written = folder.parent / f"{folder.name}-records"
    if not written.exists():
        data.write_records(split, written, num_files=3)
    return [
        data.image_folder(folder, image_size=SIZE, **options),
        data.batches(split, **options),
        data.source(split.as_element(), num_classes=10, **options),
        data.records(written, **options),
    ]


def test_all_recipes_give_the_same_rows(folder, split):
    assert (len(split), split.num_classes) == (COUNT, 10)
    first, *others = recipes(folder, split)
    assert first.num_classes == 10
    wanted = assert_workers_read_the_same(first, 1, 0, 2, 1)
    for other in others:
        assert_same(collect(other.dataset(1)), wanted)
    first, *others = recipes(folder, split, shuffle=True, seed=4)
    wanted = assert_workers_read_the_same(first, 1, 2, 3, 1)
    for other in others[:2]:
        assert_same(collect(other.dataset(1, 2)), wanted)
    (plain, *_, records) = recipes(folder, split, shuffle=True, augment=None)  # records have an order of their own
    rows = [sorted(image.tobytes() for image in joined(collect(recipe.dataset()))[0]) for recipe in (plain, records)]
    assert rows[0] == rows[1]


def make_step() -> mk.train.Step:
    layers = [keras.layers.Rescaling(1 / 127.5, -1), keras.layers.Conv2D(8, 3, 2, activation="tanh")]
    layers += [keras.layers.Conv2D(16, 3, 2, activation="tanh"), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((*SIZE, 3)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(model, keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])


@pytest.mark.slow
def test_a_training_is_the_same_on_all_recipes_and_on_two_replicas(folder, split, strategy_of):
    """The same bits on one kind of strategy; between one and two replicas, what rounding explains."""
    for where in (("one_device", 1), ("mirrored", 2)):
        found = []
        for recipe in recipes(folder, split):
            strategy = strategy_of(*where)
            keras.utils.set_random_seed(0)
            with strategy.scope():
                step = make_step()
            history = mk.train.Loop(strategy, step, steps_per_call=2).fit(recipe, epochs=2, verbose=0).history
            found.append([*step.model.get_weights(), history["loss"], history["accuracy"]])
        for other in found[1:]:
            assert_same(other, found[0])
    shuffled, *_ = recipes(folder, split, shuffle=True)
    mk.testing.assert_equivalent(make_step, shuffled, replicas=(2,), steps=10)
