"""Peak memory of training on a small and on a large set of TFRecord shards: it must not grow with the set.

    python examples/benchmarks/streaming_memory.py --megabytes 400 4000

Writes random images (64 x 64 x 3, 12 KiB each) into a temporary folder, trains one epoch on each set in a fresh process
under two virtual replicas, and prints the peak resident memory of the process. It does not count the system's page
cache, which the system frees when other processes need memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
from harness.processes import Group, Member
from harness.report import Column, figures, parsed, parser_of, present, report_of
from peak_memory import peak_bytes

import mirrorkit as mk

SHAPE = (64, 64, 3)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[400, 4000], help="sizes of the sets, 1e6 bytes")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--folder", help="where there is room for the sets; the system's temporary folder by default")
    options = parsed(parser)
    rows = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="mirrorkit-") as folder:
            with Group("streaming_memory:Writer", timeout=3600) as writer:
                examples = writer.call("write", folder=folder, megabytes=megabytes)
            member = Member({"folder": folder, "batch": options.batch_size})
            with Group("streaming_memory:Reader", member, timeout=3600) as reader:
                found = reader.call("train")
        rows.append({"megabytes": megabytes, "examples": examples, **found, **figures([found["peak_mb"]])})
    peaks = [row["peak_mb"] for row in rows]
    note = f"difference of the peaks: {max(peaks) - min(peaks):.0f} MB"
    columns = [
        *(Column("megabytes", "MB of the set", "d"), Column("peak_mb", "peak, MB", ".0f")),
        Column("examples_per_second", "images/s", ",.0f"),
    ]
    title = "Peak memory of training on TFRecord shards, MB"
    present(report_of("streaming_memory", title, columns, rows, unit="MB", notes=[note]), options)


class Writer:
    """Writes a set, in a process of its own."""

    def write(self, folder: str, megabytes: int) -> int:
        """Write random images until the set is so large; return how many."""
        size = int(np.prod(SHAPE))
        count = max(1, megabytes * 1_000_000 // size)

        def images() -> Iterator[tuple[np.ndarray, int]]:
            generator = np.random.default_rng(0)
            for i in range(count):
                yield np.frombuffer(generator.bytes(size), np.uint8).reshape(SHAPE), i % 10

        mk.data.write_records(images(), folder, num_files=16, prefix="train")
        return count


class Reader:
    """Trains on a set, in a process of its own."""

    def __init__(self, folder: str, batch: int) -> None:
        strategy = mk.strategy.create("mirrored", devices="cpu:2")
        self.data = mk.data.records(Path(folder, "train.index.json"), global_batch_size=batch, shuffle=True)
        layers = keras.layers
        with strategy.scope():
            inputs = keras.Input(SHAPE)
            x = layers.Flatten()(layers.AveragePooling2D(8)(layers.Rescaling(1 / 255)(inputs)))
            model, optimizer = keras.Model(inputs, layers.Dense(10)(x)), keras.optimizers.SGD(0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))

    def train(self) -> dict[str, float]:
        """Train an epoch; return the process's peak memory and its speed."""
        start = time.perf_counter()
        report = self.loop.fit(self.data, epochs=1, verbose=0)
        assert sum(epoch.examples for epoch in report.epochs) == self.data.num_examples
        speed = self.data.num_examples / (time.perf_counter() - start)
        return {"peak_mb": peak_bytes() / 1e6, "examples_per_second": speed}


if __name__ == "__main__":
    main()
