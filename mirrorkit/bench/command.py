"""The command `python -m mirrorkit bench`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from mirrorkit.bench.report import Report, check_places
from mirrorkit.bench.script import add_places, present


def add(commands: Any) -> None:
    """Add `bench` to the sub-commands."""
    bench = commands.add_parser("bench", help="measure scaling, strategies or all-reduces on this machine")
    kinds = bench.add_subparsers(dest="benchmark", required=True)
    scaling = kinds.add_parser("scaling", help="examples per second of 1, 2, ... replicas; strong and weak scaling")
    scaling.add_argument("--mode", choices=["strong", "weak", "both"], default="both")
    scaling.add_argument("--repeats", type=int, default=5, help="measurements of each layout, in turns")
    scaling.add_argument("--epochs", type=int, default=1, help="of one measurement")
    strategies = kinds.add_parser("strategies", help="the same training under every strategy: speed and accuracy")
    strategies.add_argument("--epochs", type=int, default=5)
    for kind in (scaling, strategies):
        kind.add_argument("--model", default="mnist_cnn", help="a name of the zoo, or module:function")
        kind.add_argument("--data", choices=["auto", "mnist", "cifar10", "synthetic"], default="auto")
        kind.add_argument("--devices", choices=["cpu", "gpu", "workers"], help="GPUs where there are any")
        kind.add_argument("--replicas", type=_numbers, metavar="N,...", help="such as 1,2,4")
        kind.add_argument("--streamed", dest="resident", action="store_false", help="tf.data makes the batches")
    collectives = kinds.add_parser("collectives", help="GB/s of an all-reduce by the size of the message")
    collectives.add_argument("--devices", choices=["cpu", "gpu", "workers"], help="GPUs where there are two")
    collectives.add_argument("--replicas", type=int)
    collectives.add_argument("--sizes", type=_numbers, metavar="BYTES,...", help="such as 4096,1048576")
    collectives.add_argument("--implementations", type=lambda text: text.split(","), metavar="NAME,...")
    collectives.add_argument("--repeats", type=int, default=5)
    gpu = kinds.add_parser("gpu", help="all of it on GPUs in 20 minutes, beside Keras's fit; and equivalence")
    gpu.add_argument("--minutes", type=float, help="for all; what no longer fits is left out (20)")
    gpu.add_argument("--devices", choices=["gpu", "cpu"], help="cpu: a rehearsal on little work")
    gpu.add_argument("--models", type=lambda text: text.split(","), metavar="NAME,...", help="mnist_cnn,resnet20")
    gpu.add_argument("--data", choices=["auto", "synthetic"], help="synthetic: look for no real images")
    gpu.add_argument("--repeats", type=int, help="measurements of each speed, in turns (5)")
    gpu.add_argument(
        "--parts", type=lambda text: text.split(","), metavar="NAME,...", help="such as equivalence,scaling"
    )
    for kind in (scaling, strategies, gpu):
        kind.add_argument("--data-dir", help="the folder with the files, or its parent")
        kind.add_argument("--examples", type=int, help="take no more training examples")
        kind.add_argument("--global-batch-size", type=int, help="of one replica in weak scaling (256)")
    for kind in (scaling, strategies, collectives, gpu):
        add_places(kind)
        kind.set_defaults(run=run)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, and write the files."""
    check_places(options.json, options.plot)
    from mirrorkit import bench  # here, so that --help needs no TensorFlow

    apart = ("command", "benchmark", "run", "json", "plot")
    given = {name: value for name, value in vars(options).items() if name not in apart and value is not None}
    if options.benchmark == "gpu":
        given["each"] = _progress(options.json)
    present(getattr(bench, options.benchmark)(**given), options)
    return 0


def _progress(json: str | None) -> Callable[[Report], None]:
    """Report each part on stderr, and save the figures so far: a borrowed machine may be taken away."""
    start = time.monotonic()

    def tell(report: Report) -> None:
        last = report.rows[-1]
        of = ", ".join(str(last[key]) for key in ("part", "model") if key in last)
        print(f"{(time.monotonic() - start) / 60:.1f} min: {of}", file=sys.stderr)
        if json:
            report.save_json(json)

    return tell
