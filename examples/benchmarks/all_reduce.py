"""GB/s of an all-reduce, by the size of the message and by the implementation, each in its own processes.

python examples/benchmarks/all_reduce.py --devices workers --replicas 2 --sizes 4096,1048576
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from anatomy import repeated
from harness.chart import Chart
from harness.machine import about_with_gpus
from harness.measure import Job, measure_in_turns
from harness.report import Column, Report, errors_in_a_line, figures, names, numbers, parsed, parser_of, present
from harness.topology import DEVICES, Hardware, Topology, check

import mirrorkit as mk
from mirrorkit.errors import DeviceError, StrategyError
from mirrorkit.strategy import of_all_workers
from mirrorkit.train import all_reduce

IMPLEMENTATIONS = {
    "cpu": ("auto", "ring", "hierarchical", "one_device"),
    "gpu": ("auto", "nccl", "hierarchical", "one_device"),
    "workers": ("auto", "ring"),
}
NOTES = {
    "cpu": ["Virtual CPU devices share their memory: this is the speed of copies, not of a network."],
    "workers": ["Workers on one machine: this is the speed of gRPC and of the loopback, not of a network."],
}
SIZES = tuple(4**i * 1024 for i in range(1, 9))  # 4 KiB to 64 MiB

COLUMNS = (
    *(Column("implementation", "implementation"), Column("replicas", "replicas", "d"), Column("bytes", "bytes", ",d")),
    *(Column("microseconds", "us", ",.0f"), Column("median", "GB/s", ".2f"), Column("best", "best", ".2f")),
    *(Column("n", "n", "d"), Column("spread", "spread", ".0%"), Column("bus", "GB/s of each link", ".2f")),
)


def collectives(
    *,
    devices: str | None = None,
    replicas: int | None = None,
    sizes: Sequence[int] = SIZES,
    implementations: Sequence[str] | None = None,
    repeats: int = 5,
) -> Report:
    """Time `mk.train.all_reduce` of float32 messages, each implementation in its own processes.

    GB/s is the size of the message divided by the time of one all-reduce (1 GB is 1e9 bytes). The last column
    multiplies it by 2 (n - 1) / n, as a ring sends that much over each link, to compare with the hardware's bandwidth
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Between more than two workers, "auto" gathers
    short messages, which sends more.

    Args:
        devices: "cpu" (virtual devices: copies in memory), "gpu", or "workers" (processes of one CPU core each); by
            default GPUs if there are two.
        replicas: how many; by default all GPUs, 4 virtual devices, or a worker for each core.
        sizes: message sizes in bytes.
        implementations: values of `communication` of `mk.strategy.create`: "auto", "one_device", "hierarchical", and
            "ring" between CPU devices or "nccl" between GPUs; "auto" and "ring" between workers. All by default.
        repeats: measurements of each, in turns.

    Raises:
        StrategyError: an unknown implementation or devices, fewer than two replicas, a size below four bytes.
    """
    machine = about_with_gpus()
    hardware = Hardware.of(machine)
    devices = hardware.device(devices or ("gpu" if hardware.gpus > 1 else "cpu"))
    replicas = replicas or max(2, hardware.counts(devices)[-1])
    check(devices, [replicas])
    known = IMPLEMENTATIONS[devices]
    implementations = known if implementations is None else implementations
    if set(implementations) - set(known) or replicas < 2 or min(sizes, default=0) < 4:
        raise StrategyError(
            f"collectives(devices={devices!r}, replicas={replicas}, sizes={list(sizes)}, "
            f"implementations={list(implementations)}) was asked for. It takes 2 replicas or more, sizes of at least 4 "
            f"bytes, and for {devices!r} the implementations {', '.join(known)}."
        )
    layout = Topology.of(devices, replicas)
    target = "all_reduce:AllReduce"
    jobs = {name: Job(target, layout, {"implementation": name, "sizes": list(sizes)}) for name in implementations}
    rows: list[dict[str, Any]] = []
    for name, found in measure_in_turns(jobs, repeats=repeats, epochs=1, warm_up=0).items():
        own = {"implementation": name, "replicas": replicas}
        if found.error is not None:
            rows.append(own | figures([], found.error))
            continue
        for size, *seconds in zip(sizes, *found.speeds, strict=True):
            row = {**own, "bytes": size, **figures([size / s / 1e9 for s in seconds])}
            row |= {"microseconds": size / row["median"] / 1e3, "bus": row["median"] * 2 * (replicas - 1) / replicas}
            rows.append(row)
    title = f"All-reduce of float32 over {replicas} replicas, {devices}"
    return Report("collectives", title, COLUMNS, rows, _chart(title, rows, sizes), NOTES.get(devices, []), machine)


class AllReduce:
    """All-reduces of each size, compiled; lives in a process of its own, or in each of several that work together."""

    def __init__(self, *, kind: str, devices: str | None, implementation: str, sizes: Sequence[int]) -> None:
        self._strategy = mk.strategy.create(kind, devices=devices, communication=implementation)
        self._sizes = sizes

    def facts(self) -> dict[str, Any]:
        """Compile, and choose how many all-reduces a call of each size makes."""
        self._functions = [self._function(size // 4) for size in self._sizes]
        # about 0.1 s each, so that the dispatch of the call does not count; all workers as often as the chief
        often = [max(4, round(0.4 / _seconds(f, 4))) for f in self._functions]
        self._loops = [int(of_all_workers(self._strategy, times)[0]) for times in often]
        return {}

    def _function(self, length: int) -> Any:
        """Compile all-reduces, each after the one before on the same replica; a call takes how many."""
        strategy = self._strategy
        message = strategy.run(lambda: tf.ones([length]))

        def on_replica(message: Any, last: Any) -> Any:
            with tf.control_dependencies([last]):
                message = tf.identity(message)
            return all_reduce(message)[0] / strategy.num_replicas_in_sync

        @tf.function(autograph=False)
        def many(times: Any, message: Any) -> Any:
            last = repeated(strategy, lambda _, last: strategy.run(on_replica, args=(message, last)), times)
            return strategy.reduce("mean", last, axis=None)

        def call(times: int) -> None:
            mean = float(many(tf.constant(times), message))
            if abs(mean - 1) > 1e-3:
                raise DeviceError(f"The all-reduce of ones gave a mean of {mean}.")

        call(1)
        return call

    def measure(self, epochs: int) -> list[float]:
        """Seconds of one all-reduce of each size."""
        return [_seconds(f, times) / times for f, times in zip(self._functions, self._loops, strict=True)]


def _seconds(function: Any, times: int) -> float:
    start = time.perf_counter()
    function(times)
    return time.perf_counter() - start


def _chart(title: str, rows: Sequence[dict[str, Any]], sizes: Sequence[int]) -> Chart:
    names = dict.fromkeys(row["implementation"] for row in rows if "values" in row)
    series = {name: [row["median"] for row in rows if row["implementation"] == name] for name in names}
    labels = [f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 1024:g} KiB" for size in sizes]
    return Chart(title, labels, series, x_label="message", y_label="GB/s (median)")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--devices", choices=DEVICES, help="GPUs where there are two")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--sizes", type=numbers, metavar="BYTES,...", default=SIZES, help="such as 4096,1048576")
    parser.add_argument("--implementations", type=names, metavar="NAME,...")
    parser.add_argument("--repeats", type=int, default=5)
    options = parsed(parser)
    given = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
    with errors_in_a_line():
        present(collectives(**given), options)


if __name__ == "__main__":
    main()
