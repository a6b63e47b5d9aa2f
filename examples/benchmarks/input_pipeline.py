"""The effect of a parallel map, prefetch, cache and shuffle on an input pipeline, one after the other.

Run: python examples/benchmarks/input_pipeline.py

JPEG images are read from a TFRecord file, decoded and flipped. A wait of 20 ms per batch stands for a step on a device
that computes while the CPU is free. The variants are measured in turns. This takes a minute and needs no GPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from harness.measure import values_in_turns
from harness.report import Column, figures, parsed, parser_of, present, report_of, table

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


def shuffled(path: str, buffer: int) -> dict[str, float]:
    """Return how many of ten classes a batch holds on average, and the milliseconds until the first batch."""
    dataset = tf.data.TFRecordDataset(path).map(decode, AUTOTUNE).shuffle(buffer, seed=0).batch(BATCH)
    next(iter(dataset))  # warm
    start = time.perf_counter()
    next(iter(dataset))
    first = 1000 * (time.perf_counter() - start)
    return {"classes": statistics.mean(len(np.unique(labels)) for _, labels in dataset), "first": first}


def main() -> None:
    """Measure both, the pipelines in turns."""
    parser = parser_of(__doc__)
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    options = parsed(parser)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "images.tfrecord"))
        write(path, options.examples)
        calls = {name: partial(waits, dataset, 5) for name, dataset in variants(path).items()}
        rows: list[dict[str, Any]] = []
        for name, rounds in values_in_turns(calls, options.rounds).items():
            measured = [wait for part in rounds for wait in part]
            low, high = np.percentile(measured, [10, 90]).tolist()
            rows.append({"pipeline": name, **figures(measured, smaller_is_better=True), "low": low, "high": high})
        buffers = (1, options.examples // 16, options.examples // 4, options.examples)
        mixed = [{"buffer": buffer, **shuffled(path, buffer)} for buffer in buffers]
    columns = [
        *(Column("pipeline", "pipeline"), Column("median", "wait for a batch, ms", ".1f")),
        *(Column("low", "10 %", ".1f"), Column("high", "90 % of the batches", ".1f"), Column("n", "n", "d")),
    ]
    more = [
        *(Column("buffer", "shuffle(buffer)", ",d"), Column("classes", "classes in a batch, mean", ".1f")),
        Column("first", "first batch after, ms", ".0f"),
    ]
    title = f"Waits of a step of {1000 * STEP:.0f} ms for its batch"
    notes = ["", table(more, mixed)]
    present(report_of("input_pipeline", title, columns, rows, unit="ms", notes=notes), options)


if __name__ == "__main__":
    main()
