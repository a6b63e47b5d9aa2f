"""The command `python -m mirrorkit bench`."""

from __future__ import annotations

import argparse
from typing import Any

from mirrorkit.bench.report import check_places


def add(commands: Any) -> None:
    """Add `bench` to the sub-commands."""
    bench = commands.add_parser("bench", help="measure scaling, strategies or all-reduces on this machine")
    kinds = bench.add_subparsers(dest="benchmark", required=True)
    scaling = kinds.add_parser("scaling", help="examples per second of 1, 2, ... replicas; strong and weak scaling")
    _add_training(scaling)
    scaling.add_argument("--mode", choices=["strong", "weak", "both"], default="both")
    scaling.add_argument("--repeats", type=int, default=5, help="measurements of each layout, in turns")
    scaling.add_argument("--epochs", type=int, default=1, help="of one measurement")
    strategies = kinds.add_parser("strategies", help="the same training under every strategy: speed and accuracy")
    _add_training(strategies)
    strategies.add_argument("--epochs", type=int, default=5)
    collectives = kinds.add_parser("collectives", help="GB/s of an all-reduce by the size of the message")
    collectives.add_argument("--device", choices=["cpu", "gpu", "workers"], help="GPUs where there are two")
    collectives.add_argument("--replicas", type=int)
    collectives.add_argument("--sizes", type=_sizes, metavar="BYTES,...", help="such as 4096,1048576")
    collectives.add_argument("--implementations", type=lambda text: text.split(","), metavar="NAME,...")
    collectives.add_argument("--repeats", type=int, default=5)
    for kind in (scaling, strategies, collectives):
        kind.add_argument("--json", metavar="FILE", help="write all figures there")
        kind.add_argument("--picture", metavar="FILE", help="PNG (with matplotlib) or SVG")
        kind.set_defaults(run=run)


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mnist_cnn", help="a name of the zoo, or module:function")
    parser.add_argument("--data", choices=["auto", "mnist", "cifar10", "synthetic"], default="auto")
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--examples", type=int, help="take no more training examples")
    parser.add_argument("--batch-size", type=int, default=256, help="global; of one replica in weak scaling")
    parser.add_argument("--device", choices=["cpu", "gpu", "workers"], help="GPUs where there are any")
    parser.add_argument("--replicas", type=_sizes, metavar="N,...", help="such as 1,2,4")
    parser.add_argument("--streamed", dest="resident", action="store_false", help="tf.data makes the batches")


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write what is asked."""
    check_places(options.json, options.picture)
    from mirrorkit import bench  # here, so that --help needs no TensorFlow

    apart = ("command", "benchmark", "run", "json", "picture")
    given = {name: value for name, value in vars(options).items() if name not in apart and value is not None}
    report = getattr(bench, options.benchmark)(**given)
    print(report)
    if options.json:
        print(f"figures: {report.save_json(options.json)}")
    if options.picture:
        print(f"picture: {report.save_picture(options.picture)}")
    return 0
