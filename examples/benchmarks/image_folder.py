"""Images per second and peak memory of reading a folder of JPEG files, against Keras's function and TFRecord files.

    python examples/benchmarks/image_folder.py --json docs/figures/image-folder.json

The training images of CIFAR-10 from $MIRRORKIT_CIFAR_SHARDS, or drawn ones where it is not set, are written as JPEG
files in class folders, and the same bytes as TFRecord files. Each contender reads epochs of them in a process of its
own, in turns and without training: shuffled, decoded, in batches. Peak memory is that of a fresh process that reads one
epoch; it does not count the system's page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import tensorflow as tf
from harness.measure import values_in_turns
from harness.peak_memory import peak_bytes
from harness.processes import Group, Member
from harness.report import SPEED_COLUMNS, Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk

SIZE, BATCH = (32, 32), 256
NAMES = {
    "folder": "mk.data.image_folder",
    "records": "mk.data.records",
    "keras": "keras.utils.image_dataset_from_directory",
}


def encoded(count: int) -> Iterator[tuple[bytes, int]]:
    """Yield JPEG images, and the class of each."""
    shards = sorted(Path(os.environ.get("MIRRORKIT_CIFAR_SHARDS", "nowhere")).glob("train-*"))
    spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], "int64"),
    }
    if shards:
        for record in tf.data.TFRecordDataset(list(map(str, shards)), "GZIP").take(count):
            parsed_example = tf.io.parse_single_example(record, spec)
            yield parsed_example["image/encoded"].numpy(), int(parsed_example["image/class/label"])
        return
    digits = mk.data.synthetic((*SIZE, 3), train=count, test=1).train
    for image, label in zip(digits.images, digits.labels, strict=True):
        yield tf.io.encode_jpeg(image).numpy(), int(label)


class Writer:
    """Writes the sets, in a process of its own."""

    def write(self, folder: str, count: int, files: int = 10) -> int:
        """Write images as files, and as TFRecord files; return how many."""
        for label in range(10):
            Path(folder, "images", f"class{label}").mkdir(parents=True)
        Path(folder, "records").mkdir()
        writers = [tf.io.TFRecordWriter(str(Path(folder, "records", f"train-{i}.tfrecord"))) for i in range(files)]
        written = 0
        for written, (content, label) in enumerate(encoded(count), 1):
            Path(folder, "images", f"class{label}", f"{written:06}.jpg").write_bytes(content)
            feature = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writers[written % files].write(example.SerializeToString())
        for writer in writers:
            writer.close()
        return written


class Reader:
    """Reads epochs of a set as a contender does, in a process of its own."""

    def __init__(self, folder: str, contender: str) -> None:
        options = {"global_batch_size": BATCH, "shuffle": True}
        self.number = 0
        self.epoch: Callable[[int], tf.data.Dataset]
        if contender == "folder":
            self.epoch = mk.data.image_folder(Path(folder, "images"), image_size=SIZE, **options).dataset
        elif contender == "records":
            self.epoch = mk.data.records(Path(folder, "records"), **options).dataset
        else:
            import keras

            found = keras.utils.image_dataset_from_directory(
                Path(folder, "images"), image_size=SIZE, batch_size=BATCH, seed=0, verbose=False
            )
            self.epoch = lambda _: found

    def read(self) -> float:
        """Read an epoch, and return its images per second."""
        start, count = time.perf_counter(), 0
        for _, labels in self.epoch(self.number):
            count += len(labels)
        self.number += 1
        return count / (time.perf_counter() - start)

    def peak(self) -> float:
        """Return the largest resident memory of this process so far, in MB."""
        return peak_bytes() / 1e6


def reader(folder: str, contender: str) -> Group:
    return Group("image_folder:Reader", Member({"folder": folder, "contender": contender}), timeout=3600)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each, after one that does not count")
    parser.add_argument("--folder", help="where there is room for the files; the system's temporary folder by default")
    options = parsed(parser)
    images, names = options.images, NAMES
    counts = images // 10, images
    peaks: dict[str, list[float]] = {contender: [] for contender in names}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="mirrorkit-") as folder, ExitStack() as stack:
        for count in counts:
            place = str(Path(folder, str(count)))
            with Group("image_folder:Writer", timeout=3600) as writer:
                writer.call("write", folder=place, count=count)
            for contender, found in peaks.items():
                with reader(place, contender) as one:
                    one.call("read")
                    found.append(one.call("peak"))
        readers = {contender: stack.enter_context(reader(place, contender)) for contender in names}
        calls = {contender: lambda one=one: one.call("read") for contender, one in readers.items()}
        speeds = values_in_turns(calls, options.rounds, warm_up=1)
    rows = [
        {"contender": name, "peak_small": peaks[name][0], "peak": peaks[name][1], **figures(values)}
        for name, values in speeds.items()
    ]
    columns = [
        *(Column("contender", "read by"), *SPEED_COLUMNS),
        *(Column("peak_small", f"peak of {counts[0]:,}, MB", ".0f"), Column("peak", f"of {counts[1]:,}, MB", ".0f")),
    ]
    height, width = SIZE
    title = f"{images:,} JPEG images of {height}x{width}, shuffled, batches of {BATCH}"
    present(report_of("image_folder", title, columns, rows, unit="images/s"), options)


if __name__ == "__main__":
    main()
