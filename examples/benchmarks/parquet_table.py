"""Rows per second and peak memory of reading a Parquet table, a small one and a large one.

    python examples/benchmarks/parquet_table.py --rows 500000 5000000

Writes tables of 30 columns (28 of float32, one of int64, one of strings) in 8 files, and reads an epoch of each in a
fresh process, shuffled, without training. For comparison, in turns, pyarrow alone reads the same row groups one after
the other, neither shuffled nor as tensors. Peak memory does not count the system's page cache.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import values_in_turns
from harness.peak_memory import peak_bytes
from harness.processes import Group, Member
from harness.report import SPEED_COLUMNS, Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk

FLOATS, FILES = 28, 8


class Writer:
    """Writes a table, in a process of its own."""

    def write(self, folder: str, rows: int, group: int) -> float:
        """Write the files; return their size in MB."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rng = np.random.default_rng(0)
        for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
            file, writer = str(Path(folder, f"{number}.parquet")), None
            for first in range(0, len(part), group):
                ids = part[first : first + group]
                columns: dict[str, Any] = {f"f{i}": rng.normal(size=len(ids)).astype(np.float32) for i in range(FLOATS)}
                table = pa.table({**columns, "city": [f"city {i % 1000}" for i in ids], "label": ids % 10})
                writer = writer or pq.ParquetWriter(file, table.schema)
                writer.write_table(table)
            if writer:
                writer.close()
        return sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6


class Reader:
    """Reads epochs of a table, in a process of its own."""

    def __init__(self, folder: str, batch: int) -> None:
        self.folder, self.number = folder, 0
        self.data = mk.data.parquet(folder, y="label", global_batch_size=batch, shuffle=True)

    def read(self) -> float:
        """Read an epoch, and return its rows per second."""
        start, count, sum_of = time.perf_counter(), 0, 0
        for _, labels in self.data.dataset(self.number):
            count += len(labels)
            sum_of += int(labels.numpy().sum())
        assert (count, sum_of) == (self.data.num_examples, sum(i % 10 for i in range(self.data.num_examples)))
        self.number += 1
        return count / (time.perf_counter() - start)

    def peak(self) -> float:
        """Return the largest resident memory of this process so far, in MB."""
        return peak_bytes() / 1e6


class Bare:
    """Reads row groups with pyarrow alone."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(map(str, Path(folder).iterdir()))

    def read(self) -> float:
        """Read an epoch, and return its rows per second."""
        import pyarrow.parquet as pq

        start, count = time.perf_counter(), 0
        for file in self.files:
            with pq.ParquetFile(file) as opened:
                for group in range(opened.num_row_groups):
                    count += len(opened.read_row_group(group))
        return count / (time.perf_counter() - start)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--group", type=int, default=50_000, help="rows of a row group")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each, after one that does not count")
    parser.add_argument("--folder", help="where there is room for the files; the system's temporary folder by default")
    options = parsed(parser)
    rows: list[dict[str, Any]] = []
    for count in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="mirrorkit-") as folder:
            with Group("parquet_table:Writer", timeout=3600) as writer:
                size = writer.call("write", folder=folder, rows=count, group=options.group)
            member = Member({"folder": folder, "batch": options.batch_size})
            with (
                Group("parquet_table:Reader", member, timeout=3600) as reader,
                Group("parquet_table:Bare", Member({"folder": folder}), timeout=3600) as bare,
            ):
                calls = {"mk.data.parquet": reader, "pyarrow alone": bare}
                reads = {name: lambda one=one: one.call("read") for name, one in calls.items()}
                speeds = values_in_turns(reads, options.rounds, warm_up=1)
                peak = reader.call("peak")
        for name, values in speeds.items():
            own = {"peak": peak} if name == "mk.data.parquet" else {}
            rows.append({"contender": name, "rows": count, "megabytes": size, **own, **figures(values)})
    columns = [
        *(Column("contender", "read by"), Column("rows", "rows", ",d"), Column("megabytes", "MB of the files", ".0f")),
        *(*SPEED_COLUMNS, Column("peak", "peak, MB", ".0f")),
    ]
    title = f"Parquet tables of {FLOATS + 2} columns, row groups of {options.group:,}, batches of {options.batch_size}"
    present(report_of("parquet_table", title, columns, rows, unit="rows/s", packages=["pyarrow"]), options)


if __name__ == "__main__":
    main()
