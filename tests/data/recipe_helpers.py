"""Small splits, what a recipe makes of them as arrays, and what workers make of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from mirrorkit import batching, data

# the dtypes that the arrays of a split may have
IN_SPLITS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
SPLIT = data.synthetic((16, 16, 3), train=53, test=1).train


def collect(dataset: tf.data.Dataset) -> list:
    return [tf.nest.map_structure(lambda t: t.numpy(), element) for element in dataset]


def joined(batches: list):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)


def write_foreign(path: Path, images: np.ndarray, labels: np.ndarray, *, gzip: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), "GZIP" if gzip else "") as writer:
        for image, label in zip(images, labels, strict=True):
            feature = {
                "image/encoded": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                ),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def write_images(folder: Path, images: np.ndarray, names: Iterable[str] | None = None) -> list[str]:
    """Write images as PNG files, which keep every pixel, and return their paths."""
    paths = [str(folder / name) for name in names or (f"{i:04}.png" for i in range(len(images)))]
    for path, image in zip(paths, images, strict=True):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(tf.io.encode_png(image).numpy())
    return paths


def numbered(count: int) -> data.Split:
    """A split whose x is its own number, so that orders can be read off."""
    return data.arrays(np.arange(count)[:, None], np.arange(count) % 7)


def order_of(recipe: data.Recipe, epoch: int = 0, start: int = 0) -> list[int]:
    return [int(i) for x, *_ in recipe.dataset(epoch, start) for i in x.numpy().ravel()]


def assert_same(one: list, two: list) -> None:
    assert len(one) == len(two)
    tf.nest.map_structure(np.testing.assert_array_equal, one, two)


def contexts(workers: int, each: int = 1) -> list[tf.distribute.InputContext]:
    return [tf.distribute.InputContext(workers, i, workers * each) for i in range(workers)]


def assert_workers_read_the_same(recipe: data.Recipe, epoch: int, start: int, workers: int, each: int) -> list:
    """Of each batch together all rows, or each all of them where a replica would get none; returns the batches."""
    whole = collect(recipe.dataset(epoch, start))
    parts = [collect(recipe.dataset(epoch, start, input_context=context)) for context in contexts(workers, each)]
    assert {len(part) for part in parts} == {len(whole)} == {recipe.steps_per_epoch - start}
    for number, batch in enumerate(whole):
        rows = [part[number] for part in parts]
        if min(batching.per_replica_sizes(len(batch[1]), workers * each)):
            rows = [joined(rows)]
        for own in rows:
            assert_same([own], [batch])
    return whole
