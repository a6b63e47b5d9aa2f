"""TFRecord shards that were not written by mirrorkit."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
from record_helpers import SPLIT, collect, joined

from mirrorkit import data
from mirrorkit.errors import DataError

CIFAR_SHARDS = os.environ.get("MIRRORKIT_CIFAR_SHARDS")


def write_foreign(path, images, labels, *, gzip=False, encode=tf.io.encode_png):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), "GZIP" if gzip else "") as writer:
        for image, label in zip(images, labels, strict=True):
            feature = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encode(image).numpy()])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def foreign(tmp_path, request):
    for i, part in enumerate((slice(0, 20), slice(20, 53))):
        path = tmp_path / "set" / f"train-{i:05d}-of-00002.tfrecord"
        write_foreign(path, SPLIT.images[part], SPLIT.labels[part], gzip=request.param)
    return tmp_path / "set"


def test_shards_from_elsewhere(foreign):
    recipe = data.records(foreign / "train-*", global_batch_size=20, shuffle=True, num_classes=10, one_hot=True)
    assert (recipe.num_examples, recipe.counts) == (53, (20, 33))
    x, y = joined(collect(recipe.dataset()))
    want = sorted(zip((image.tobytes() for image in SPLIT.images), SPLIT.labels, strict=True))
    assert sorted(zip((image.tobytes() for image in x), y.argmax(1), strict=True)) == want
    assert [t.shape.as_list() for t in recipe.element_spec] == [[None, 16, 16, 3], [None, 10]]
    assert data.records(foreign, global_batch_size=20, num_examples=53).steps_per_epoch == 3


def test_shards_from_elsewhere_with_a_decode_of_ones_own(foreign):
    def decode(serialized):
        spec = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
        label = tf.io.parse_single_example(serialized, spec)["image/class/label"]
        return tf.cast(label, tf.float32), label

    x, y = joined(collect(data.records(foreign, global_batch_size=9, decode=decode).dataset()))
    np.testing.assert_array_equal(x, y)
    assert sorted(y) == sorted(SPLIT.labels)


def test_bad_shards_from_elsewhere_are_named(foreign):
    with pytest.raises(DataError, match=r"holds labels 0 \.\. 9; they must lie in 0 \.\. 4"):
        data.records(foreign, global_batch_size=5, num_classes=5)
    with pytest.raises(DataError, match="pass num_classes="):
        data.records(foreign, global_batch_size=5, one_hot=True)
    last = foreign / "train-00001-of-00002.tfrecord"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{last.name} is cut short or damaged after \d+ examples"):
        data.records(foreign, global_batch_size=5)
    last.unlink()
    with pytest.raises(DataError, match="train should have 2 shards; number 1 is missing"):
        data.records(foreign, global_batch_size=5)
    (foreign / "train-00000-of-00002.tfrecord").write_bytes(b"no records at all, just some text")
    with pytest.raises(DataError, match=r"train-00000-of-00002\.tfrecord is damaged"):
        data.records(foreign / "*", global_batch_size=5)


def test_several_sets_in_a_folder_are_told_apart(foreign):
    write_foreign(foreign / "test-00000-of-00001.tfrecord", SPLIT.images[:4], SPLIT.labels[:4])
    with pytest.raises(DataError, match="holds several sets: test, train"):
        data.records(foreign, global_batch_size=2)
    for prefix in ("a", "b"):
        data.write_records(SPLIT, foreign, prefix=prefix)
    with pytest.raises(DataError, match=r"several sets: a\.index\.json, b\.index\.json"):
        data.records(foreign, global_batch_size=2)
    assert data.records(foreign / "b.index.json", global_batch_size=2).num_examples == 53


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR_SHARDS, reason="needs CIFAR-10 as TFRecord shards: set MIRRORKIT_CIFAR_SHARDS")
def test_real_shards():
    recipe = data.records(f"{CIFAR_SHARDS}/train-*", global_batch_size=500, shuffle=True, num_classes=10)
    assert recipe.num_examples == 50_000
    x, y = joined(collect(recipe.dataset()))
    assert x.shape == (50_000, 32, 32, 3)
    assert (np.bincount(y) == 5000).all()
