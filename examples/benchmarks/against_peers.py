"""mirrorkit's Loop beside its peers: same net, data, optimizer and batch, in turns in one run.

    python examples/benchmarks/against_peers.py --net cnn --replicas 4 --batch-size 256 --data mnist

Every contender lives in a process of its own, compiles once and then trains blocks of epochs in turns with the others
(A B C, A B C, ...). An epoch's time is from the end of the one before to its own end, so everything counts, and all of
them track accuracy. Other work on the machine only slows an epoch down: compare the fastest, with the medians beside.

`--first-step` measures, in fresh processes, from a made model to the end of the first training step instead.
"name@2" sets a contender's own number of replicas (of processes, each on a core of its own, for loop-workers and ddp).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from contenders import CONTENDERS
from contenders.process import Failed, Process
from contenders.work import Work, steps_per_epoch


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            described = pool.apply(prepare, (folder, options))
        work = Work(options.net, options.replicas, options.batch_size, folder, options.device, options.plain)
        print(f"{described}; {options.net}, global batch {options.batch_size}, {options.replicas} replicas")
        print(f"{machine()}; {versions()}", flush=True)
        measure, unit = (first_steps, "s to the first step") if options.first_step else (epochs, "images/s")
        results = measure(options, work)
    rows = table(results, smaller_is_better=options.first_step)
    print("\n".join(lines(rows, unit)))
    if options.json:
        about = {"command": sys.argv, "machine": machine(), "versions": versions(), "data": described, "unit": unit}
        about["time"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
        Path(options.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=["cnn", "linear"], default="cnn")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256, help="global: all replicas together")
    parser.add_argument(
        "--device", choices=["cpu", "gpu"], default="cpu", help="cpu: virtual devices on the same cores"
    )
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each contender, after the one that compiles")
    parser.add_argument("--epochs", type=int, default=4, help="of a block")
    parser.add_argument("--contenders", default="loop-resident,loop,fit,hand", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--data", choices=["auto", "mnist", "synthetic"], default="auto")
    parser.add_argument("--data-dir", help="the folder with MNIST, or its parent")
    parser.add_argument("--examples", type=int, default=60_000, help="take no more than so many")
    parser.add_argument("--plain", action="store_true", help="peers: TensorFlow's default strategy, not mirrorkit's")
    parser.add_argument("--first-step", action="store_true", help="time to the first step; --rounds fresh processes")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.contenders = options.contenders.split(",")
    unknown = [name for name in options.contenders if name.partition("@")[0] not in CONTENDERS]
    if unknown:
        parser.error(f"unknown contenders {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return options


def prepare(folder: str, options: argparse.Namespace) -> str:
    """Write what the contenders read; in a process of its own, so that this one stays small."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import numpy as np

    import mirrorkit as mk

    if options.data == "synthetic":
        digits = mk.data.synthetic(train=options.examples, test=1)
    else:
        fallback = "synthetic" if options.data == "auto" else None
        digits = mk.data.load("mnist", data_dir=options.data_dir, fallback=fallback)
    split = digits.train[: options.examples]
    np.save(Path(folder, "images.npy"), split.images)
    np.save(Path(folder, "labels.npy"), split.labels)
    if any("records" in name for name in options.contenders):
        mk.data.write_records(split, folder, shards=8, prefix="train")
    return f"{len(split):,} images of {digits.name}"


def epochs(options: argparse.Namespace, work: Work) -> dict[str, Any]:
    """Images per second of every epoch and the last training accuracy, by contender; or why there are none."""
    processes = {name: Process(name, work) for name in options.contenders}
    results: dict[str, Any] = {name: {"values": []} for name in options.contenders}
    examples = steps_per_epoch(work) * work.batch_size

    def attempt(name: str, *request: Any) -> Any:
        try:
            return processes[name].ask(*request) if request else processes[name].answers()
        except Failed as error:
            processes.pop(name).end()
            results[name] = {"values": [], "error": str(error)}

    try:
        for name in options.contenders:
            if attempt(name):
                attempt(name, 1, None, True)
        for _ in range(options.rounds):
            for name in list(processes):
                if answer := attempt(name, options.epochs, None, False):
                    _, laps, accuracy = answer
                    results[name]["values"] += [examples / seconds for seconds in laps]
                    results[name]["accuracy"] = accuracy
    finally:
        for process in processes.values():
            process.end()
    return results


def first_steps(options: argparse.Namespace, work: Work) -> dict[str, Any]:
    """Seconds from a made model to the end of the first step (optimizer, compile, trace, run), by contender."""
    results: dict[str, Any] = {name: {"values": []} for name in options.contenders}
    for _ in range(options.rounds):
        for name in options.contenders:
            process = Process(name, work)
            try:
                process.answers()
                build, laps, _ = process.ask(1, 1, True)
                results[name]["values"].append(build + laps[0])
            except Failed as error:
                results[name]["error"] = str(error)
            finally:
                process.end()
    return results


def table(results: dict[str, Any], *, smaller_is_better: bool) -> list[dict[str, Any]]:
    """A row for each contender; the ratio says how many times better the first one's best is."""
    best = min if smaller_is_better else max
    rows: list[dict[str, Any]] = []
    for name, result in results.items():
        row = {"contender": name, **result}
        if values := result["values"]:
            median = statistics.median(values)
            row |= {"best": best(values), "median": median, "spread": (max(values) - min(values)) / median}
            first = next(r for r in [*rows, row] if "best" in r)
            ratios = first["best"] / row["best"], first["median"] / row["median"]
            row["ratio"], row["ratio_of_medians"] = (1 / r for r in ratios) if smaller_is_better else ratios
        rows.append(row)
    return rows


def lines(rows: list[dict[str, Any]], unit: str) -> list[str]:
    """The table for people."""
    first = next((row["contender"] for row in rows if "best" in row), "nobody")
    head = f"{'contender':18}{'best':>12}{'median':>12}{'n':>4}{'spread':>8}{'accuracy':>10}"
    out = [f"{head}  {first} against it (of medians)   [{unit}]"]
    for row in rows:
        if "best" not in row:
            out.append(f"{row['contender']:18}{row.get('error', 'nothing measured')}")
            continue
        digits = 0 if row["best"] > 100 else 2
        figures = f"{row['best']:12,.{digits}f}{row['median']:12,.{digits}f}{len(row['values']):4}{row['spread']:8.0%}"
        accuracy = f"{row['accuracy']:10.4f}" if "accuracy" in row else f"{'':10}"
        out.append(f"{row['contender']:18}{figures}{accuracy}  {row['ratio']:.2f} x ({row['ratio_of_medians']:.2f} x)")
    return out


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def versions() -> str:
    found = []
    for name in ("tensorflow", "keras", "torch", "tf-models-official"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return f"Python {platform.python_version()}, {', '.join(found)}"


if __name__ == "__main__":
    main()
