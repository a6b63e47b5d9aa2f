"""Global batches read from TFRecord files, for data larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data import record_files
from mirrorkit.data.disk import CURE, DISK_ERRORS, file_errors, reason
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.errors import DataError, FileError, RecipeError
from mirrorkit.whole import is_whole

_OPEN_FILES = 16  # read at the same time
_ENCODED = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}

Decode = Callable[[tf.Tensor], Any]


@dataclass(frozen=True, eq=False)
class Records(PreparedRecipe):
    """A recipe like `batches`, for examples in TFRecord files; memory does not grow with the set.

    `mk.data.records` is this class.

    ```python
    train = mk.data.records("frames/", global_batch_size=256, shuffle=True)               # written by write_records
    train = mk.data.records("imagenet/train-*", global_batch_size=256, shuffle=True)      # files from elsewhere
    ```

    Unshuffled, a set of `write_records` with up to 16 files comes in the order in which it was written. Shuffled,
    every epoch draws a new order of the files and shuffles the examples in blocks; a pure function of (seed, epoch).

    Args:
        source: a folder with one set, its index file, or a pattern such as "imagenet/train-*". Files from elsewhere
            hold `image/encoded` (JPEG or PNG, all of one shape) and `image/class/label`; or anything, with `decode`.
            Gzip is recognised.
        global_batch_size: examples per step over all replicas together. The last batch of an epoch may be smaller.
        shuffle: draw a new order for every epoch.
        shuffle_buffer: how many serialized examples are shuffled together; they are held in memory.
        seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`; but an augmentation's random numbers
            depend on (seed, epoch, first example of the batch): workers that read their own files draw their own.
        num_classes: the number of classes; for files from elsewhere, `one_hot` needs it.
        decode: for files from elsewhere, your own function of one serialized example -> `(x, y)`.
        num_examples: for files from elsewhere, how many examples they hold; None reads them through once and counts
            (and compares the labels with `num_classes`, where there is no `decode`).

    Attributes:
        files: the files, with their paths.
        counts: the number of examples in each; with `num_examples`, that number alone.
        compression: "" or "GZIP".
        features: dtype and shape of every array of an example, where `write_records` wrote the set; else None.

    The arguments are attributes too. `num_examples` is then the number of examples that were found, and `decode` the
    function in use, None where `write_records` wrote the set.

    Raises:
        RecipeError: what `batches` refuses, and arguments that contradict the set's index.
        DataError: no such files, several sets, a file that is missing or cut short (named), a label outside the
            classes. Damage within a file shows when it is read: a `Loop` then names the file; a custom training loop
            gets TensorFlow's DataLossError, and `verify()` names the file.
        FileError: a file that cannot be read.
    """

    source: str | os.PathLike[str]
    shuffle_buffer: int = field(default=8192, kw_only=True)
    num_classes: int | None = field(default=None, kw_only=True)
    decode: Decode | None = field(default=None, kw_only=True)
    num_examples: InitVar[int | None] = field(default=None, kw_only=True)  # the attribute is the number found
    files: tuple[str, ...] = field(init=False)
    counts: tuple[int, ...] = field(init=False)
    compression: str = field(init=False)
    features: Mapping[str, Any] | None = field(init=False)

    def __post_init__(self, num_examples: int | None) -> None:
        """Find the files and check the arguments."""
        if not is_whole(self.shuffle_buffer):
            raise RecipeError(
                f"shuffle_buffer={self.shuffle_buffer!r} was asked for; it must be a whole number of at least 1."
            )
        index_path, files = record_files.find(self.source)
        if index_path is None:
            self._take_files(files, num_examples)
        elif self.decode is None and num_examples is None:
            self._take_index(record_files.read_index(index_path))
        else:
            raise RecipeError(
                f"{index_path} says how to decode its examples and how many there are: leave out decode and "
                "num_examples."
            )
        if self.features is None:
            shape, labelled = None, True
        else:
            shape = [None, *self.features["x"]["shape"]] if "x" in self.features else []
            labelled = self.features.get("y", {}).get("dtype") == "int64"
        self._settle(sum(self.counts), shape)
        self._set(num_examples=self._num_examples, shuffle_buffer=int(self.shuffle_buffer))
        if self.one_hot and (self.num_classes is None or not labelled):
            raise RecipeError("one_hot=True needs class indices (integers) and num_classes; pass num_classes=.")

    def _take_index(self, index: Mapping[str, Any]) -> None:
        self._set(
            files=tuple(entry["file"] for entry in index["shards"]),
            counts=tuple(entry["examples"] for entry in index["shards"]),
            compression=index["compression"],
            features=index["features"],
            num_classes=index["num_classes"] if self.num_classes is None else self.num_classes,
        )

    def _take_files(self, files: Sequence[str], num_examples: int | None) -> None:
        compression = _compression(files[0])
        decode = self.decode or _image_decoder(files[0], compression)
        if num_examples is None:
            counts = _count(files, compression, self.num_classes if self.decode is None else None)
        else:
            counts = [num_examples]
        self._set(files=tuple(files), counts=tuple(counts), compression=compression, features=None, decode=decode)

    def verify(self) -> None:
        """Read all files through, without decoding.

        Raises:
            DataError: a file that is cut short or damaged, by its name.
            FileError: a file that cannot be read.
        """
        _count(self.files, self.compression)

    def dataset(self, epoch: int = 0, start: int = 0) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`; those before are skipped without decoding them.

        Raises:
            RecipeError: a negative epoch, or a start outside 0 .. steps_per_epoch.
        """
        self._check_position(epoch, start)
        examples = self._serialized(epoch, start * self.global_batch_size)
        if self.decode is not None:
            examples = examples.map(self._decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        gathered = examples.batch(self.global_batch_size, drop_remainder=self.drop_remainder)

        def batch(*parts: Any) -> Any:
            if self.decode is None:
                key, element = _fingerprint(parts[0][0]), _decode_raw(parts[0], self.features or {})
            else:
                key, element = parts[0][0], parts[1]
            return self.finish(element, epoch=epoch, step=key)

        batch = self._without_autograph(batch)
        batches = gathered.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return batches.prefetch(self.prefetch)

    def _serialized(self, epoch: int, first: int) -> tf.data.Dataset:
        """The serialized examples of an epoch in their order, from the `first` on."""
        files, together = np.array(self.files), min(len(self.files), _OPEN_FILES)
        if self.shuffle:
            files = np.random.default_rng([self.seed, epoch]).permutation(files)
            # with half of the files open, other examples meet in a block in every epoch
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


records = Records


def _fingerprint(serialized: tf.Tensor) -> tf.Tensor:
    """A number that identifies an example, and the block or batch that begins with it.

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
    return record_files.unflatten(flat)


def _compression(file: str) -> str:
    with file_errors(f"{file} cannot be read", CURE), tf.io.gfile.GFile(file, "rb") as opened:
        return "GZIP" if opened.read(3) == b"\x1f\x8b\x08" else ""


def _image_decoder(file: str, compression: str) -> Decode:
    try:
        first = next(iter(tf.data.TFRecordDataset(file, compression).take(1)), None)
        if first is None:
            raise DataError(f"{file} holds no example.")
        shape = tf.io.decode_image(tf.io.parse_single_example(first, _ENCODED)["image/encoded"]).shape
    except tf.errors.OpError as error:
        raise DataError(
            f"{file} is damaged or holds no image/encoded (JPEG or PNG) with image/class/label: {reason(error)}. "
            "Pass decode= for examples of another form; files of write_records need their index beside them."
        ) from error

    def decode(serialized: tf.Tensor) -> Any:
        example = tf.io.parse_single_example(serialized, _ENCODED)
        image = tf.io.decode_image(example["image/encoded"], channels=shape[-1], expand_animations=False)
        return tf.ensure_shape(image, shape), example["image/class/label"]

    return decode


def _count(files: Sequence[str], compression: str, num_classes: int | None = None) -> list[int]:
    """The number of examples in each file; with `num_classes`, after a look at every label."""
    label_only = {"image/class/label": _ENCODED["image/class/label"]}
    counts = []
    for file in files:
        count = 0
        try:
            for part in tf.data.TFRecordDataset(file, compression).batch(1024):
                count += len(part)
                if num_classes is None:
                    continue
                labels = tf.io.parse_example(part, label_only)["image/class/label"].numpy()
                if labels.min() < 0 or labels.max() >= num_classes:
                    raise DataError(
                        f"{file} holds labels {labels.min()} .. {labels.max()}; they must lie in "
                        f"0 .. {num_classes - 1} for {num_classes} classes."
                    )
        except DISK_ERRORS as error:  # not the data's fault
            raise FileError(f"{file} cannot be read: {reason(error)}. {CURE}") from error
        except tf.errors.OpError as error:
            raise DataError(f"{file} is cut short or damaged after {count} examples: {reason(error)}.") from error
        counts.append(count)
    return counts
