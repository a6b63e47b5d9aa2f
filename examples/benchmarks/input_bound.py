"""An input-bound job on several workers, compared with as many independent jobs, each with its part of the data.

    python examples/benchmarks/input_bound.py --workers 2

JPEG images are decoded and augmented for a linear model; every process has its own core. The workers train one model
together and read their own rows of each global batch. Each independent job trains its own model on its part of the
files. They run in turns (workers, apart, workers, ...); the ratio of images/s shows the cost of reading together.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import values_in_turns
from harness.processes import Group
from harness.report import SPEED_COLUMNS, Column, figures, parsed, parser_of, present, report_of
from harness.topology import Topology, alone


class Job:
    """A training in one process, alone or as a worker.

    Args:
        files: TFRecord files of JPEG images; `counts` says how many each holds.
        counts: the number of images in each file.
        batch_size: global.
        kind, devices: as `mk.strategy.create` takes them.
    """

    def __init__(self, files: list[str], counts: list[int], batch_size: int, kind: str, devices: str | None) -> None:
        import keras

        import mirrorkit as mk

        self.strategy = mk.strategy.create(kind, devices=devices)
        # a pattern for just these files
        pattern = str(Path(files[0]).parent / "*.tfrecord")
        self.data = mk.data.records(
            pattern,
            global_batch_size=batch_size,
            shuffle=True,
            augment=[mk.data.augment.flip(), mk.data.augment.pad_and_crop(4)],
            num_examples=counts,
            drop_remainder=True,
        )
        keras.utils.set_random_seed(0)
        with self.strategy.scope():
            model = mk.models.create("linear", input_shape=tuple(self.data.element_spec[0].shape[1:]))
            optimizer = keras.optimizers.SGD(0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = mk.train.Loop(self.strategy, mk.train.Step(model, optimizer, loss=loss))
        self.epoch = 0

    def train(self) -> float:
        """Train for an epoch, and return its images per second."""
        start = time.perf_counter()
        self.loop.fit(self.data, initial_epoch=self.epoch, epochs=self.epoch + 1, verbose=0)
        self.epoch += 1
        return self.data.steps_per_epoch * self.data.global_batch_size / (time.perf_counter() - start)


def write(folder: Path, *, images: int, files: int, side: int) -> list[int]:
    """Write JPEG images to TFRecord files, as sets from elsewhere have them; returns how many each file holds."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8)
    folder.mkdir()
    counts = []
    for number, part in enumerate(np.array_split(np.arange(images), files)):
        with tf.io.TFRecordWriter(str(folder / f"train-{number:05d}.tfrecord")) as writer:
            for i in part:
                image = tf.cast(tf.image.resize(coarse[i], (side, side)), tf.uint8)
                feature = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(image).numpy()])
                    ),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[i % 10])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        counts.append(len(part))
    return counts


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=32_768, help="written as JPEG for the measurement")
    parser.add_argument("--side", type=int, default=64, help="of an image, in pixels")
    parser.add_argument("--batch-size", type=int, default=1024, help="global, of the workers together")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each, after the one that compiles")
    options = parsed(parser)
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder, ExitStack() as stack:
        parts = [Path(folder, f"part{i}") for i in range(options.workers)]
        share = options.images // options.workers
        counts = [write(part, images=share, files=4, side=options.side) for part in parts]
        whole = Path(folder, "whole")
        whole.mkdir()
        for i, part in enumerate(parts):
            for file in part.iterdir():
                (whole / f"{i}-{file.name}").symlink_to(file)

        def arguments(place: Path, numbers: list[int], batch_size: int) -> dict[str, Any]:
            return {"files": sorted(map(str, place.iterdir())), "counts": numbers, "batch_size": batch_size}

        whole_counts = [number for numbers in counts for number in numbers]
        together = Topology("multi_worker", "workers", options.workers)
        batch = options.batch_size // options.workers
        processes = {
            "workers": together.members(**arguments(whole, whole_counts, options.batch_size)),
            "apart": [alone(i, **arguments(part, counts[i], batch)) for i, part in enumerate(parts)],
        }
        jobs = {name: stack.enter_context(Group("input_bound:Job", *own)) for name, own in processes.items()}
        # what one process says: of the workers all images, of the jobs apart its own part
        times = {"workers": 1, "apart": options.workers}
        calls = {name: lambda name=name: times[name] * jobs[name].call("train") for name in jobs}
        speeds = values_in_turns(calls, options.rounds, warm_up=1)
    ratios = [one / other for one, other in zip(speeds["workers"], speeds["apart"], strict=True)]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}, n = {len(ratios)}"
    note = f"workers / apart: median {statistics.median(ratios):.3f}, {spread}"
    title = f"{options.images:,} JPEG images of {options.side}x{options.side}, batch {options.batch_size}"
    rows = [{"jobs": name, **figures(values)} for name, values in speeds.items()]
    columns = (Column("jobs", "jobs"), *SPEED_COLUMNS)
    present(report_of("input_bound", title, columns, rows, unit="images/s", notes=[note]), options)


if __name__ == "__main__":
    main()
