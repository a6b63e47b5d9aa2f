"""The time to the first update: Loop and Keras's fit, and Loop with synchronized and with plain BatchNormalization.

    python examples/benchmarks/first_update.py --replicas 1 2 4 8 --layers 8 16 32 64 --rounds 3

As in kinds_of_work.py, each round starts a fresh process for each contender and measures the time from the start of the
first fit to the end of its only update; for `Loop` also the time of the checks of the first batch and of tracing. A few
steps follow. The nets with BatchNormalization run on `--beside-plain` replicas.

`--write docs/speed-details.md` stores the run in docs/figures and makes the tables of that page from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import write
from harness.measure import Job, check_work
from harness.report import Column, parsed, parser_of, present, report_of
from harness.topology import check
from kinds.models import BATCH_NORM, FIRST, LAYERS
from kinds_of_work import has_blocks, job, measured, rows_of
from stored import first_update
from stored.runs import FOLDER, Run

from mirrorkit.errors import MirrorkitError


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    for work, replicas, jobs in comparisons(options):
        print(f"{work}, {replicas} replicas", file=sys.stderr, flush=True)
        rows += rows_of(work, replicas, measured(jobs, options))
    columns = [Column("what", "what"), Column("measured", "measured"), Column("median", "median", ",.4g")]
    columns += [Column("n", "n", "d"), Column("spread", "spread", ".0%")]
    title = "The first update: seconds of all of it, of its checks and of tracing; seconds of a step; peak memory in MB"
    report = report_of("first_update", title, columns, rows, unit="seconds")
    present(report, options)
    run = Run(first_update.NAME, {"about": report.about, "rows": rows})
    print("", *(line for make, _ in first_update.BLOCKS.values() for line in (*make(run), "")), sep="\n")
    if options.write:
        report.save_json(FOLDER / f"{first_update.NAME}.json")
        write([])


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.set_defaults(device="cpu")  # as in kinds_of_work.py
    parser.add_argument(
        "--nets", nargs="*", choices=list(FIRST), default=list(FIRST), help="beside fit; all by default"
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8], help="virtual CPU devices, beside fit")
    parser.add_argument("--layers", type=int, nargs="*", choices=LAYERS, default=list(LAYERS), help="synchronized")
    parser.add_argument("--beside-plain", type=int, nargs="+", default=[2], help="replicas of the synchronized nets")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each")
    parser.add_argument("--write", metavar="PAGE", help="a page of docs/ with blocks for these figures")
    parser.set_defaults(turns=1, epochs=1, steps=None)
    options = parsed(parser)
    try:
        check("cpu", options.replicas)
        check("cpu", options.beside_plain)
        check_work(rounds=options.rounds)
    except MirrorkitError as error:
        parser.error(str(error))
    if options.write and not has_blocks(Path(options.write), first_update.BLOCKS):
        parser.error(
            f"--write {options.write}: no page of docs/ that has one of the blocks {', '.join(first_update.BLOCKS)}"
        )
    return options


def comparisons(options: argparse.Namespace) -> Iterator[tuple[str, int, dict[str, Job]]]:
    """Yield a name, the number of replicas, and the contenders by name."""
    for net in options.nets:
        for replicas in options.replicas:
            contenders = {"loop": "Loop", "fit": "Fit"}
            yield net, replicas, {name: job(of, net, "adam", replicas, options) for name, of in contenders.items()}
    for layers in options.layers:
        for replicas in options.beside_plain:
            work = f"{layers} layers"
            yield (
                work,
                replicas,
                {name: job("Loop", f"{name}, {layers}", "adam", replicas, options) for name in BATCH_NORM},
            )


if __name__ == "__main__":
    main()
