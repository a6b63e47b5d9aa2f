"""What map in parallel, prefetch, cache and shuffle do for an input pipeline, one after the other.

Run: python examples/benchmarks/input_pipeline.py

JPEG images are read from a TFRecord file, decoded and flipped. A wait of 20 ms per batch stands for a step on a device
that computes while the CPU is free. The variants are measured in turns. It needs no GPU, and a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

BATCH, SIZE, STEP = 64, 224, 0.020
AUTOTUNE = tf.data.AUTOTUNE


def write(path: str, examples: int) -> None:
    """Write JPEG images, sorted by class, as records."""
    digits = mk.data.synthetic(train=examples, test=1, shape=(SIZE, SIZE, 3)).train
    with tf.io.TFRecordWriter(path) as writer:
        for i in np.argsort(digits.labels, kind="stable"):
            writer.write(bytes([digits.labels[i]]) + tf.io.encode_jpeg(digits.images[i]).numpy())


def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the image, 64x64 and uint8, and its label."""
    image = tf.io.decode_jpeg(tf.strings.substr(record, 1, -1), channels=3)
    image = tf.cast(tf.image.resize(image, [64, 64]), tf.uint8)
    return image, tf.cast(tf.io.decode_raw(tf.strings.substr(record, 0, 1), tf.uint8)[0], tf.int64)


def flip(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Flip at random: after a cache, so that every epoch flips others."""
    return tf.image.random_flip_left_right(image), label


def variants(path: str) -> dict[str, tf.data.Dataset]:
    """Return the pipelines, each with one stage more than the one before, and the first as TensorFlow changes it.

    By default, TensorFlow makes plain maps parallel and adds a prefetch at the end; the others run as written.
    """
    as_written = tf.data.Options()
    as_written.experimental_optimization.map_parallelization = False
    as_written.experimental_optimization.inject_prefetch = False
    records = tf.data.TFRecordDataset(path)
    parallel = records.map(decode, AUTOTUNE)
    plain = records.map(decode).map(flip).batch(BATCH)
    written = {
        "map, batch": plain,
        "the same, map(..., AUTOTUNE)": parallel.map(flip, AUTOTUNE).batch(BATCH),
        "and prefetch(AUTOTUNE)": parallel.map(flip, AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE),
        "and cache() after decode": parallel.cache().map(flip, AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE),
    }
    rewritten = {"map, batch, with TensorFlow's own changes": plain}
    return {name: dataset.with_options(as_written) for name, dataset in written.items()} | rewritten


def waits(dataset: tf.data.Dataset, epochs: int) -> list[float]:
    """Return the milliseconds for which each step waits for its batch, after an epoch of tuning."""
    found, end = [], time.perf_counter()
    for _ in dataset.repeat(epochs):
        found.append(1000 * (time.perf_counter() - end))
        time.sleep(STEP)
        end = time.perf_counter()
    return found[len(found) // epochs :]


def shuffled(path: str, buffer: int) -> tuple[float, float]:
    """Return how many of ten classes a batch holds on average, and the milliseconds until the first batch."""
    dataset = tf.data.TFRecordDataset(path).map(decode, AUTOTUNE).shuffle(buffer, seed=0).batch(BATCH)
    next(iter(dataset))  # warm
    start = time.perf_counter()
    next(iter(dataset))
    first = 1000 * (time.perf_counter() - start)
    return statistics.mean(len(np.unique(labels)) for _, labels in dataset), first


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "images.tfrecord"))
        write(path, args.examples)
        datasets = variants(path)
        times: dict[str, list[float]] = {name: [] for name in datasets}
        for _ in range(args.rounds):
            for name, dataset in datasets.items():
                times[name] += waits(dataset, 5)
        print(f"tensorflow {tf.__version__}, keras {keras.__version__}; a step takes {1000 * STEP:.0f} ms")
        print("| pipeline | wait for a batch, ms: median | 10 to 90 % of the batches | n |\n|---|---:|---:|---:|")
        for name, measured in times.items():
            low, median, high = np.percentile(measured, [10, 50, 90])
            print(f"| {name} | {median:.1f} | {low:.1f} to {high:.1f} | {len(measured)} |")
        print("\n| `shuffle(buffer)` | classes in a batch, mean | first batch after, ms |\n|---:|---:|---:|")
        for buffer in (1, args.examples // 16, args.examples // 4, args.examples):
            classes, first = shuffled(path, buffer)
            print(f"| {buffer:,} | {classes:.1f} | {first:.0f} |")


if __name__ == "__main__":
    main()
