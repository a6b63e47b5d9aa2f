"""Compare mirrorkit's Loop with its peers: same net, data, optimizer and batch size, in turns in one run.

    python examples/benchmarks/against_peers.py --net cnn --replicas 4 --batch-size 256 --data mnist

Every contender runs in its own process, compiles once and then trains blocks of epochs in turns with the others
(A B C, A B C, ...). The time of an epoch is measured from the end of the previous epoch to its own end, so it includes
everything in between. All contenders track accuracy. Other work on the machine can only slow an epoch down, so compare
the fastest epochs; the medians are given too.

`--first-step` measures instead, in fresh processes, the time from a created model to the end of the first step.
"name@2" sets a contender's own number of replicas (for loop-workers, ddp and loop-apart, the number of processes, each
on its own core). The processes of loop-apart train independently: they show the limit of that many cores.
"name+onednn" makes TensorFlow use oneDNN (TF_ENABLE_ONEDNN_OPTS=1), which is off by default on processors with only
AVX2.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

from contenders import CONTENDERS
from harness.measure import Job, Measured, in_turns, measure_in_turns
from harness.processes import Group
from harness.report import Column, figures, parsed, parser_of, present, report_of
from harness.topology import Topology


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
        with Group("contenders.preparation:Preparation") as preparation:
            data, examples = preparation.call(
                "write",
                folder=folder,
                data=options.data,
                data_dir=options.data_dir,
                examples=options.examples,
                records=any("records" in name for name in options.contenders),
            )
        work = {name: getattr(options, name) for name in ("net", "batch_size", "plain")} | {"folder": folder}
        jobs = {name: job(name, options, work) for name in options.contenders}
        measure = first_steps if options.first_step else epochs
        rows = compare(measure(jobs, options), smaller_is_better=options.first_step)
    unit = "seconds to the first step" if options.first_step else "images/s"
    title = (
        f"{options.net} on {examples:,} images of {data}, global batch {options.batch_size}, {options.replicas} "
        f"replicas ({options.device}), {options.rounds} rounds: {unit}"
    )
    packages = ("torch", "tf-models-official", "tf-keras")
    present(report_of("against_peers", title, columns(options), rows, unit=unit, packages=packages), options)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
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
    parser.add_argument("--examples", type=int, default=60_000, help="take at most this many")
    parser.add_argument("--plain", action="store_true", help="peers: TensorFlow's default strategy, not mirrorkit's")
    parser.add_argument("--first-step", action="store_true", help="time to the first step; --rounds fresh processes")
    options = parsed(parser)
    options.contenders = options.contenders.split(",")
    unknown = [name for name in options.contenders if parts(name)[0] not in CONTENDERS]
    if unknown:
        parser.error(f"unknown contenders {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return options


def parts(name: str) -> tuple[str, str, dict[str, str]]:
    """Of "name@2+onednn" the name, the number and the environment variables."""
    rest = name.removesuffix("+onednn")
    short, _, number = rest.partition("@")
    return short, number, {} if rest == name else {"TF_ENABLE_ONEDNN_OPTS": "1"}


def job(name: str, options: argparse.Namespace, work: dict[str, Any]) -> Job:
    """The processes of a contender, and what is made in them."""
    short, number, environment = parts(name)
    processes = CONTENDERS[short][2]
    replicas = int(number or (2 if processes else options.replicas))
    if processes == "apart":
        layout = Topology("apart", "workers", replicas)
    else:
        layout = Topology.of(processes or options.device, replicas)
    return Job("contenders:make", layout, {"name": short, "work": {**work, "replicas": replicas}}, environment)


def epochs(jobs: dict[str, Job], options: argparse.Namespace) -> dict[str, Measured]:
    """Images per second of every epoch, and the last training accuracy."""
    found = measure_in_turns(jobs, repeats=options.rounds, epochs=options.epochs, evaluate=True)
    for measured in found.values():
        measured.speeds = [speed for speeds in measured.speeds for speed in speeds]
    return found


def first_steps(jobs: dict[str, Job], options: argparse.Namespace) -> dict[str, Measured]:
    """Seconds from a made model to the end of the first step (optimizer, compile, trace, run), in fresh processes."""

    def measure(of: Job) -> float:
        with Group(of.target, *of.members, timeout=1800) as contender:
            return contender.call("first_step")

    turns = in_turns({name: partial(measure, of) for name, of in jobs.items()}, options.rounds)
    return {name: Measured(turn.answers, error=turn.error) for name, turn in turns.items()}


def compare(found: dict[str, Measured], *, smaller_is_better: bool) -> list[dict[str, Any]]:
    """A row for each contender; the ratios say how many times better the first one is than it."""
    rows: list[dict[str, Any]] = []
    for name, measured in found.items():
        row = {"contender": name, **figures(measured.speeds, measured.error, smaller_is_better=smaller_is_better)}
        rows.append(row)
        if measured.error is None:
            first = next(r for r in rows if "best" in r)
            ratios = [first[key] / row[key] for key in ("best", "median")]
            row["ratio"], row["ratio_of_medians"] = (1 / r for r in ratios) if smaller_is_better else ratios
            row["accuracy"] = measured.accuracy
    return rows


def columns(options: argparse.Namespace) -> list[Column]:
    form = ",.2f" if options.first_step else ",.0f"
    first = options.contenders[0]
    return [
        *(Column("contender", "contender"), Column("best", "best", form), Column("median", "median", form)),
        *(Column("n", "n", "d"), Column("spread", "spread", ".0%"), Column("accuracy", "accuracy", ".4f")),
        *(Column("ratio", f"{first} / it", ".2f"), Column("ratio_of_medians", "of medians", ".2f")),
    ]


if __name__ == "__main__":
    main()
