"""Global batches read from TFRecord shards, for data larger than memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data import shards
from mirrorkit.data.augment import Augmentation
from mirrorkit.data.batches import MapFunction, check_augment, finish, sparing_autograph
from mirrorkit.data.recipe import Recipe, check_sizes
from mirrorkit.errors import DataError
from mirrorkit.whole import is_whole

_OPEN_FILES = 16  # read at the same time
_ENCODED = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}

Decode = Callable[[tf.Tensor], Any]


@dataclass(frozen=True, eq=False)
class Records(Recipe):
    """The recipe that `mk.data.records` makes; see there. Beside that function's arguments it has these attributes.

    Attributes:
        files: the shards.
        counts: the number of examples in each.
        compression: "" or "GZIP".
        features: dtype and shape of every array of an example, where `write_records` wrote the set; else None.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]
    compression: str
    features: Mapping[str, Any] | None
    decode: Decode | None
    num_classes: int | None
    global_batch_size: int
    shuffle: bool = False
    shuffle_buffer: int = 8192
    seed: int = 0
    augment: tuple[Augmentation, ...] = ()
    map: MapFunction | None = None
    one_hot: bool = False
    drop_remainder: bool = False
    prefetch: int = tf.data.AUTOTUNE

    @property
    def num_examples(self) -> int:
        """The number of examples in all shards."""
        return sum(self.counts)

    def dataset(self, epoch: int = 0, start: int = 0) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`; those before are read past, but not decoded.

        Raises:
            DataError: a negative epoch, or a start outside 0 .. steps_per_epoch.
        """
        self._check_position(epoch, start)
        examples = self._serialized(epoch, start * self.global_batch_size)
        if self.decode is None:
            batches = examples.batch(self.global_batch_size, drop_remainder=self.drop_remainder)
        else:
            decoded = examples.map(self._decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            batches = decoded.batch(self.global_batch_size, drop_remainder=self.drop_remainder)

        def batch(*parts: Any) -> Any:
            if self.decode is None:
                key, element = _fingerprint(parts[0][0]), _decode_raw(parts[0], self.features or {})
            else:
                key, element = parts[0][0], parts[1]
            depth = self.num_classes if self.one_hot else None
            return finish(element, self.map, self.augment, depth, seed=self.seed, epoch=epoch, step=key)

        batch = sparing_autograph(batch, self.map, self.augment)
        batches = batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return batches.prefetch(self.prefetch)

    @functools.cached_property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch, as `tf.data.Dataset.element_spec` gives them."""
        return self.dataset().element_spec

    def verify(self) -> None:
        """Read all shards through, without decoding.

        Raises:
            DataError: a shard that is cut short or damaged, by its name.
        """
        _count(self.files, self.compression, False, None)

    def _serialized(self, epoch: int, first: int) -> tf.data.Dataset:
        """The serialized examples of an epoch in their order, from the `first` on."""
        files, together = np.array(self.files), min(len(self.files), _OPEN_FILES)
        if self.shuffle:
            files = np.random.default_rng([self.seed, epoch]).permutation(files)
            # with half of the shards open, other examples meet in a block in every epoch
            together = max(1, together // 2)
        read = tf.data.Dataset.from_tensor_slices(files).interleave(
            lambda file: tf.data.TFRecordDataset(file, self.compression),
            cycle_length=together,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if not self.shuffle:
            return read.skip(first)
        # Dataset.shuffle would mix TensorFlow's global seed into the order; a block shuffled by a stateless operation
        # depends on nothing but (seed, epoch, block), and blocks before the start need not be shuffled at all
        skipped, rest = divmod(first, self.shuffle_buffer)

        def shuffled(block: tf.Tensor) -> tf.Tensor:
            key = tf.constant([self.seed, epoch], tf.int64)
            key = tf.random.experimental.stateless_fold_in(key, _fingerprint(block[0]))
            return tf.random.experimental.stateless_shuffle(block, key)

        return (
            read.skip(skipped * self.shuffle_buffer)
            .batch(self.shuffle_buffer)
            .map(tf.autograph.experimental.do_not_convert(shuffled))
            .unbatch()
            .skip(rest)
        )

    def _decoded(self, serialized: tf.Tensor) -> Any:
        assert self.decode is not None
        return _fingerprint(serialized), self.decode(serialized)


def records(
    source: str | os.PathLike[str],
    *,
    global_batch_size: int,
    shuffle: bool = False,
    shuffle_buffer: int = 8192,
    seed: int = 0,
    augment: Sequence[Augmentation] | None = None,
    map: MapFunction | None = None,
    one_hot: bool = False,
    num_classes: int | None = None,
    decode: Decode | None = None,
    num_examples: int | None = None,
    drop_remainder: bool = False,
    prefetch: int = tf.data.AUTOTUNE,
) -> Records:
    """A recipe, as `batches` makes it, for examples in TFRecord shards; memory does not grow with the set.

    ```python
    train = mk.data.records("frames/", global_batch_size=256, shuffle=True)               # written by write_records
    train = mk.data.records("imagenet/train-*", global_batch_size=256, shuffle=True)      # shards from elsewhere
    ```

    Unshuffled, a set of `write_records` with up to 16 shards comes in the order in which it was written. Shuffled,
    every epoch draws a new order of the shards and shuffles the examples in blocks; a pure function of (seed, epoch).

    Args:
        source: a folder with one set, its index file, or a pattern such as "imagenet/train-*". Shards from elsewhere
            hold `image/encoded` (JPEG or PNG, all of one shape) and `image/class/label`; or anything, with `decode`.
            Gzip is recognised.
        global_batch_size: examples per step over all replicas together. The last batch of an epoch may be smaller.
        shuffle: draw a new order for every epoch.
        shuffle_buffer: how many serialized examples are shuffled together; they are held in memory.
        seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`; but an augmentation's random numbers
            depend on (seed, epoch, first example of the batch): workers that read their own files draw their own.
        num_classes: the number of classes; for shards from elsewhere, `one_hot` needs it.
        decode: for shards from elsewhere, your own function of one serialized example -> `(x, y)`.
        num_examples: for shards from elsewhere, how many examples they hold; None reads them through once and counts
            (and compares the labels with `num_classes`, where there is no `decode`).

    Raises:
        DataError: no such files, several sets, a shard that is missing or cut short (named), a label outside the
            classes, and what `batches` refuses. Damage within a shard shows when it is read: a `Loop` then names the
            shard; a loop of your own gets TensorFlow's DataLossError, and `verify()` names the shard.
    """
    if not is_whole(shuffle_buffer):
        raise DataError(f"shuffle_buffer={shuffle_buffer!r} was asked for; it must be a whole number from 1 on.")
    index_path, files = shards.find(source)
    features = None
    if index_path is not None:
        if decode is not None or num_examples is not None:
            raise DataError(
                f"{index_path} says how to decode its examples and how many: leave decode, num_examples out."
            )
        index = shards.read_index(index_path)
        features, compression = index["features"], index["compression"]
        files = [shard["file"] for shard in index["shards"]]
        counts = [shard["examples"] for shard in index["shards"]]
        num_classes = index["num_classes"] if num_classes is None else num_classes
    else:
        compression = _compression(files[0])
        labelled = decode is None
        decode = decode or _image_decoder(files[0], compression)
        counts = [num_examples] if num_examples is not None else _count(files, compression, labelled, num_classes)
    check_sizes(global_batch_size, sum(counts), seed)
    recipe = Records(
        files=tuple(files),
        counts=tuple(counts),
        compression=compression,
        features=features,
        decode=decode,
        num_classes=num_classes,
        global_batch_size=int(global_batch_size),
        shuffle=shuffle,
        shuffle_buffer=int(shuffle_buffer),
        seed=int(seed),
        augment=tuple(augment or ()),
        map=map,
        one_hot=one_hot,
        drop_remainder=drop_remainder,
        prefetch=prefetch,
    )
    if map is None and features is not None:
        check_augment(augment, [None, *features["x"]["shape"]] if "x" in features else [])
    if one_hot and (num_classes is None or (features is not None and features.get("y", {}).get("dtype") != "int64")):
        raise DataError("one_hot=True needs class indices (integers) and num_classes; pass num_classes=.")
    return recipe


def _fingerprint(serialized: tf.Tensor) -> tf.Tensor:
    """A number that stands for an example, and for the block or batch that begins with it.

    Counting the batches would be the plainer way, but Dataset.enumerate and scan make autosharding by file impossible.
    """
    return tf.strings.to_hash_bucket_fast(serialized, 1 << 62)


def _decode_raw(serialized: tf.Tensor, features: Mapping[str, Any]) -> Any:
    spec = {key: tf.io.FixedLenFeature([], tf.string) for key in features}
    parsed = tf.io.parse_example(serialized, spec)
    flat = {}
    for key, feature in features.items():
        values = tf.io.decode_raw(parsed[key], feature["dtype"])
        flat[key] = tf.reshape(values, [-1, *feature["shape"]])
        flat[key].set_shape([serialized.shape[0], *feature["shape"]])
    return shards.unflatten(flat)


def _compression(file: str) -> str:
    with tf.io.gfile.GFile(file, "rb") as opened:
        return "GZIP" if opened.read(3) == b"\x1f\x8b\x08" else ""


def _image_decoder(file: str, compression: str) -> Decode:
    try:
        first = next(iter(tf.data.TFRecordDataset(file, compression).take(1)), None)
        if first is None:
            raise DataError(f"{file} holds no example.")
        shape = tf.io.decode_image(tf.io.parse_single_example(first, _ENCODED)["image/encoded"]).shape
    except tf.errors.OpError as error:
        raise DataError(
            f"{file} is damaged or holds no image/encoded (JPEG or PNG) with image/class/label: {_said(error)}. "
            "Pass decode= for examples of another form; shards of write_records need their index beside them."
        ) from error

    def decode(serialized: tf.Tensor) -> Any:
        example = tf.io.parse_single_example(serialized, _ENCODED)
        image = tf.io.decode_image(example["image/encoded"], channels=shape[-1], expand_animations=False)
        return tf.ensure_shape(image, shape), example["image/class/label"]

    return decode


def _count(files: Sequence[str], compression: str, labelled: bool, num_classes: int | None) -> list[int]:
    label_only = {"image/class/label": _ENCODED["image/class/label"]}
    counts = []
    for file in files:
        count = 0
        try:
            for part in tf.data.TFRecordDataset(file, compression).batch(1024):
                count += len(part)
                if not labelled or num_classes is None:
                    continue
                labels = tf.io.parse_example(part, label_only)["image/class/label"].numpy()
                if labels.min() < 0 or labels.max() >= num_classes:
                    raise DataError(
                        f"{file} holds labels {labels.min()} .. {labels.max()}; they must lie in "
                        f"0 .. {num_classes - 1} for {num_classes} classes."
                    )
        except tf.errors.OpError as error:
            raise DataError(f"{file} is cut short or damaged after {count} examples: {_said(error)}.") from error
        counts.append(count)
    return counts


def _said(error: tf.errors.OpError) -> str:
    return str(error.message).splitlines()[0].split("{{")[0].strip()
