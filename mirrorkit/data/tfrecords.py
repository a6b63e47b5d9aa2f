"""Global batches read from TFRecord files, for data larger than memory."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import tensorflow as tf

from mirrorkit.arguments import is_whole
from mirrorkit.data import record_files
from mirrorkit.data.disk import CURE, crc32, file_errors, reason
from mirrorkit.data.index_file import read_index
from mirrorkit.data.reading import OfReader
from mirrorkit.data.record_lengths import count_by_reading, first_length, first_record
from mirrorkit.data.record_reading import RecordReader
from mirrorkit.data.remote_files import local, opened
from mirrorkit.errors import DataError, RecipeError

_ENCODED = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}

_TOGETHER = 16  # examples that are decoded one after the other, beside others: more take more memory, fewer more time

Decode = Callable[[tf.Tensor], Any]


@dataclass(frozen=True, eq=False)
class Records(OfReader):
    """A recipe like `batches`, for examples in TFRecord files; memory does not grow with the set.

    `mk.data.records` is this class.

    ```python
    train = mk.data.records("frames/", global_batch_size=256, shuffle=True)               # written by write_records
    train = mk.data.records("imagenet/train-*", global_batch_size=256, shuffle=True)      # files from elsewhere
    ```

    Unshuffled, a set of `write_records` comes in the order in which it was written, and files from elsewhere come one
    after the other. Shuffled, blocks of consecutive examples (or whole files if they are gzip) come in an order drawn
    for the epoch, and are divided among up to 64 lanes. Each batch takes some rows from every lane, and each lane is
    shuffled within windows. The order is a pure function of the files, their numbers of examples, `global_batch_size`,
    `shuffle_buffer`, and (seed, epoch).

    On several workers, each decodes only the rows of its replicas. Shuffled, it also reads only the lanes with these
    rows.

    Args:
        source: a folder with one set, its index file, or a pattern such as "imagenet/train-*"; or an address of these,
            such as "s3://bucket/train-*" (docs: Data, In a bucket). Files from elsewhere hold `image/encoded` (JPEG or
            PNG, all of one shape) and `image/class/label`; or anything, with `decode`. Gzip is recognized.
        global_batch_size: examples per step over all replicas together, as in `batches`.
        shuffle: draw a new order for every epoch.
        shuffle_buffer: how many serialized examples are held in memory, divided among the workers; at least those of
            two batches. Half of them are shuffled together, while the other half is read.
        seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`.
        weights, replacement, examples_per_epoch: as in `batches`, but weights of examples alone, in the order in which
            they come unshuffled; for uncompressed files on this machine.
        num_classes: the number of classes; for files from elsewhere, `one_hot` needs it. Without `decode`, the labels
            of files from elsewhere are checked against it as they are decoded.
        decode: for files from elsewhere, your own function of one serialized example -> `(x, y)`, or `x` alone.
        num_examples: for files from elsewhere, how many examples they hold: one number for each file, in the order of
            their names, or the total. With None the examples are counted, and also with a total of several files. Local
            uncompressed files are counted by their record headers, others by reading them. A number is checked against
            the headers. For gzip and remote files it is trusted (`verify()` checks it), and examples beyond it are not
            read.

    Attributes:
        files: the files, with their paths.
        counts: the number of examples in each.
        compression: "" or "GZIP".
        features: dtype and shape of every array of an example, where `write_records` wrote the set; else None.

    The arguments are attributes too. `num_examples` is the number of examples found, and `decode` the function in use
    (None if `write_records` wrote the set).

    Raises:
        RecipeError: what `batches` refuses, and arguments that contradict the set's index.
        DataError: no such files, several sets, a file that is missing or cut short (named), a label outside the
            classes. Damage within a file shows when it is read, and is named: by this error in a `Loop`, by
            TensorFlow's in a custom training loop.
        FileError: a file that cannot be read.
    """

    source: str | os.PathLike[str]
    shuffle_buffer: int = field(default=8192, kw_only=True)
    num_classes: int | None = field(default=None, kw_only=True)
    decode: Decode | None = field(default=None, kw_only=True)
    # The attribute is the number found.
    num_examples: InitVar[int | Sequence[int] | None] = field(default=None, kw_only=True)
    files: tuple[str, ...] = field(init=False)
    counts: tuple[int, ...] = field(init=False)
    compression: str = field(init=False)
    features: Mapping[str, Any] | None = field(init=False)
    _reader: RecordReader = field(init=False, repr=False)
    _crcs: tuple[int | None, ...] = field(default=(), init=False, repr=False)  # of the files, from their index

    def __post_init__(self, num_examples: int | Sequence[int] | None) -> None:
        """Find the files and check the arguments."""
        index_path, files = record_files.find(self.source)
        if index_path is None:
            told = self._take_files(files, num_examples)
        elif self.decode is None and num_examples is None:
            told = self._take_index(read_index(index_path))
        else:
            raise RecipeError(
                f"{index_path} says how to decode its examples and how many there are: leave out decode and "
                "num_examples."
            )
        # of an index: arrays of one dtype and shape throughout, examples of one size
        reader = RecordReader(self.files, self.compression, told, one_size=index_path is not None)
        self._set(_reader=reader, counts=reader.counts)
        inputs, labels = ((self.features or {}).get(name) for name in ("x", "y"))
        shape = inputs and [None, *inputs["shape"]]
        labelled = self.features is None or (labels is not None and labels["dtype"] == "int64")
        self._settle(sum(self.counts), shape, has_classes=labelled)
        self._set(num_examples=self._num_examples)

    def _take_index(self, index: Mapping[str, Any]) -> tuple[int, ...]:
        """Take what an index says; return how many examples it says each file has."""
        written = index["num_classes"]
        if written is not None and is_whole(self.num_classes) and self.num_classes < written:
            raise RecipeError(
                f"num_classes={self.num_classes} was asked for, but the index of {self.source} says {written}. Leave "
                "it out, or write the set again."
            )
        self._set(
            files=tuple(entry["file"] for entry in index["shards"]),
            compression=index["compression"],
            features=index["features"],
            _crcs=tuple(entry.get("crc32") for entry in index["shards"]),
            num_classes=written if self.num_classes is None else self.num_classes,
        )
        return tuple(entry["examples"] for entry in index["shards"])

    def _take_files(self, files: Sequence[str], num_examples: Any) -> int | tuple[int, ...] | None:
        """Take files from elsewhere; return how many examples they were said to hold."""
        compression = _compression(files[0])
        decode = self.decode or _image_decoder(files, compression, self.num_classes)
        self._set(files=tuple(files), compression=compression, features=None, decode=decode)
        return _numbers(num_examples, files)

    def verify(self) -> None:
        """Read all files to their ends, without decoding.

        Raises:
            DataError: a file that is cut short or damaged, or not the one that `write_records` wrote under its name;
                another number of examples than the given one.
            FileError: a file that cannot be read.
        """
        found, others = [], []
        for file, crc in itertools.zip_longest(self.files, self._crcs):
            with local(file) as path:
                found.append(count_by_reading(file, self.compression, path))
                if crc is not None and crc32(path) != crc:
                    others.append(file)
        if tuple(found) != self.counts:
            raise DataError(
                f"The files of {self.source} should hold {self.num_examples} examples ({list(self.counts)}), found "
                f"{sum(found)} ({found}). Correct num_examples, or write the set again."
            )
        if others:
            raise DataError(
                f"{others[0]} is whole, but not the file that was written under this name: a copy of another, or of "
                "another version of the set. Copy the whole set again, or write it again."
            )

    def _element(self, *read: Any) -> tuple[Any, ...]:
        return read if self.decode is not None else _decode_raw(read[0], self.features or {})

    def _decoded(self, read: tf.data.Dataset, sizes: tuple[int, int], start: int) -> tf.data.Dataset:
        """Decode serialized examples with the user's function or that of images, some on each core."""
        if self.decode is None:
            return read
        decode, (size, last) = self.decode, sizes
        spec = tf.data.Dataset.from_tensors(b"").map(decode).element_spec

        def decoded(serialized: tf.Tensor) -> tuple[Any, ...]:
            made = tf.map_fn(decode, serialized, fn_output_signature=spec)
            return made if isinstance(made, tuple) else (made,)

        some = read.rebatch(min(size, _TOGETHER))
        some = some.map(decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        whole = self.num_examples // self.global_batch_size - start
        return some.rebatch(size, drop_remainder=not last) if last <= size else some.rebatch([size] * whole + [last])

    @property
    def layout(self) -> object:
        """See `PreparedRecipe`."""
        if not self.shuffle:
            return None
        # a compressed file is one block, whatever its size
        return (self.compression, self.counts) if self.compression else self.counts

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        first = first_record(self.files[0], self.compression) or b""
        return f"{super().identity(epoch, start)} {zlib.crc32(first)}"

    @property
    def order_version(self) -> int:  # type: ignore[override]
        """A number that changes when a release of mirrorkit changes the order of examples in an epoch."""
        return 4 if self.shuffle else 2


records = Records


def _decode_raw(serialized: tf.Tensor, features: Mapping[str, Any]) -> Any:
    spec = {key: tf.io.FixedLenFeature([], tf.string) for key in features}
    parsed = tf.io.parse_example(serialized, spec)
    flat = {}
    for key, feature in features.items():
        values = tf.io.decode_raw(parsed[key], feature["dtype"])
        # as many rows as examples: arrays of another size than the index says are an error
        flat[key] = tf.reshape(values, [serialized.shape[0] or tf.shape(serialized)[0], *feature["shape"]])
    return record_files.unflatten(flat)


def _compression(file: str) -> str:
    with file_errors(f"{file} cannot be read", CURE), opened(file) as content:
        return "GZIP" if content.read(3) == b"\x1f\x8b\x08" else ""


def _numbers(num_examples: Any, files: Sequence[str]) -> int | tuple[int, ...] | None:
    """`num_examples` after a check: None, a number, or a number for each file."""
    if num_examples is None:
        return None
    if is_whole(num_examples):
        return int(num_examples)
    numbers = tuple(num_examples) if hasattr(num_examples, "__len__") else ()
    if len(numbers) != len(files) or not all(is_whole(number, 0) for number in numbers):
        raise RecipeError(
            f"num_examples={num_examples!r} was asked for; it must be a whole number of at least 1, or one for each of "
            f"the {len(files)} files."
        )
    return tuple(map(int, numbers))


def _image_decoder(files: Sequence[str], compression: str, num_classes: int | None) -> Decode:
    first = None
    try:
        for file in files:
            first_length(file, compression)  # TensorFlow takes as much memory
            if (first := first_record(file, compression)) is not None:
                image = tf.io.parse_single_example(first, _ENCODED)["image/encoded"]
                shape = tf.io.decode_image(image).shape
                break
    except (tf.errors.OpError, DataError) as error:
        raise DataError(
            f"{file} is damaged or holds no image/encoded (JPEG or PNG) with image/class/label: "
            f"{reason(error).rstrip('.')}. Pass decode= for examples of another form; files of write_records need "
            "their index beside them."
        ) from error
    if first is None:
        raise DataError(f"{files[0]} and the files beside it hold no example.")

    def decode(serialized: tf.Tensor) -> Any:
        example = tf.io.parse_single_example(serialized, _ENCODED)
        image = tf.io.decode_image(example["image/encoded"], channels=shape[-1], expand_animations=False)
        label = example["image/class/label"]
        if num_classes is not None:
            words = f"A file holds a label outside 0 .. {num_classes - 1}, found with num_classes={num_classes}:"
            tf.debugging.Assert((label >= 0) & (label < num_classes), [words, label])
        return tf.ensure_shape(image, shape), label

    return tf.autograph.experimental.do_not_convert(decode)
