"""Compare the speed and memory of Loop with those of Keras's fit, on several kinds of work.

    python examples/benchmarks/kinds_of_work.py --replicas 1 2 4 --rounds 3

Both train the same model with the same optimizer on the same `tf.data.Dataset` of global batches, which repeats
endlessly. On several replicas, both run under the strategy of `mk.strategy.create("mirrored", devices="cpu:N")`, a
tf.distribute.MirroredStrategy of virtual CPU devices. On one replica, `fit` runs without a strategy.

A round starts a fresh process for each contender. It measures the time from the start of the first fit to the end of
its only update, and the part of it that the checks of the first batch take; then epochs in turns; finally the peak
memory of each process. The row of a contender that fails shows the first line of its error.

"batch-norm" is another comparison: `Loop` on a net with synchronized and with plain BatchNormalization.

`--also XLA rows` also measures options that may not be a step's default: XLA, and tables that are updated by rows,
densely or lazily. On GPUs (`--device gpu`) the peak memory is that of the first GPU.

`--write docs/speed-kinds.md` stores the run in docs/figures and makes the tables and the picture of that page from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import pages, write
from harness.chart import check_plot
from harness.machine import about, about_with_gpus
from harness.measure import Job, check_work, measure_in_turns
from harness.report import Column, Report, figures, parsed, parser_of, present
from harness.topology import Topology, check
from kinds.models import BATCH_NORM, KINDS
from stored import kinds
from stored.runs import FOLDER, Run

from mirrorkit.errors import MirrorkitError

EVERY = [*KINDS, "batch-norm"]
ALSO = {
    "XLA": {"jit_compile": True},
    "rows": {"sparse_embeddings": True},
    "dense": {"sparse_embeddings": False},
    "lazy": {"sparse_embeddings": "lazy"},
}

OF_TABLES = ("rows", "dense", "lazy")  # which the recommender alone has


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    report = report_of(rows, options.device)
    for work, replicas, jobs in comparisons(options):
        print(f"{work}, {replicas} replicas", file=sys.stderr, flush=True)
        rows += rows_of(work, replicas, measured(jobs, options))
        report = report_of(rows, options.device)
        if options.json:  # so that the figures survive a run that is cut short
            report.save_json(options.json)
    present(report, options)
    run = Run(kinds.NAME, {"about": report.about, "rows": rows})
    print("", *(line for make, _ in kinds.BLOCKS.values() for line in (*make(run), "")), sep="\n")
    if options.write:
        report.save_json(FOLDER / f"{kinds.NAME}.json")
        write([kinds.NAME])


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=EVERY, default=EVERY, help="all by default")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--optimizer",
        nargs="+",
        choices=["adam", "sgd", "adagrad"],
        default=["adam"],
        help="of the recommender, each in turn; the other kinds train with Adam",
    )
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu", help="virtual CPU devices, or GPUs")
    parser.add_argument("--also", nargs="+", choices=list(ALSO), default=[], help="steps with other options")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each")
    parser.add_argument("--turns", type=int, default=3, help="of each process, one after the other")
    parser.add_argument("--epochs", type=int, default=1, help="of a turn, besides one that is not counted")
    parser.add_argument("--steps", type=int, help="of an epoch; those of the kind by default")
    parser.add_argument("--write", metavar="PAGE", help="a page of docs/ with blocks for these figures")
    options = parsed(parser)
    try:
        check(options.device, options.replicas)
        check_work(rounds=options.rounds, turns=options.turns, epochs=options.epochs, steps=options.steps)
        if options.write:
            check_plot("picture.svg")
    except MirrorkitError as error:
        parser.error(str(error))
    if options.write and not has_blocks(Path(options.write), kinds.BLOCKS):
        parser.error(f"--write {options.write}: no page of docs/ that has one of the blocks {', '.join(kinds.BLOCKS)}")
    return options


def has_blocks(page: Path, names: Iterable[str]) -> bool:
    """Whether it is a page on which these figures have a place."""
    return any(f"<!-- figures: {name} -->" in pages().get(page.resolve(), "") for name in names)


def comparisons(options: argparse.Namespace) -> Iterator[tuple[str, int, dict[str, Job]]]:
    """Yield a name, the number of replicas, and the contenders by name."""
    for kind in options.kinds:
        for replicas in options.replicas:
            if kind == "batch-norm":
                if replicas > 1:  # one has nothing to synchronize
                    yield kind, replicas, {name: job("Loop", name, "adam", replicas, options) for name in BATCH_NORM}
                continue
            for optimizer in options.optimizer if kind == "recommender" else ["adam"]:
                also = {
                    f"loop, {name}": ALSO[name]
                    for name in options.also
                    if kind == "recommender" or name not in OF_TABLES
                }
                jobs = {
                    name: job("Loop", kind, optimizer, replicas, options, of_step=of)
                    for name, of in {"loop": {}, **also}.items()
                }
                jobs["fit"] = job("Fit", kind, optimizer, replicas, options)
                yield (kind if optimizer == "adam" else f"{kind}, {optimizer}"), replicas, jobs


def job(contender: str, work: str, optimizer: str, replicas: int, options: argparse.Namespace, **of: Any) -> Job:
    arguments = {"work": work, "optimizer": optimizer, "steps": options.steps, **of}
    return Job(f"kinds.contenders:{contender}", Topology.of(options.device, replicas), arguments)


def measured(jobs: Mapping[str, Job], options: argparse.Namespace) -> dict[str, dict[str, list[float]] | str]:
    """Return of each contender the values by what is measured, or the first line of its error."""
    found: dict[str, Any] = {name: {} for name in jobs}
    for number in range(options.rounds):
        order = [name for name in (jobs, reversed(jobs))[number % 2] if not isinstance(found[name], str)]
        of_round = measure_in_turns({n: jobs[n] for n in order}, repeats=options.turns, epochs=options.epochs)
        for name, of in of_round.items():
            if of.error is not None:
                found[name] = of.error.splitlines()[0].partition(" failed: ")[2] or of.error.splitlines()[0]
                continue
            values = {what: [seconds] for what, seconds in of.facts.items()}
            values["step"] = [seconds for turn in of.speeds for seconds in turn["step"]]
            values["peak"] = [of.speeds[-1]["peak"]]
            found[name] = {what: [*found[name].get(what, []), *new] for what, new in values.items()}
    return found


def rows_of(work: str, replicas: int, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each contender and quantity; those of the first contender have the ratios to the other."""
    rows = []
    for name, values in found.items():
        case = {"what": f"{work}, {replicas} replicas, {name}", "work": work, "replicas": replicas, "contender": name}
        if isinstance(values, str):
            rows.append({**case, "measured": "nothing", "error": values})
            continue
        rows += [{**case, "measured": what, **figures(of, smaller_is_better=True)} for what, of in values.items()]
    one, *_, other = found
    by_name = {(row["contender"], row["measured"]): row for row in rows}
    for what in kinds.QUANTITIES:
        pair = [by_name.get((name, what)) for name in (one, other)]
        if all(pair):
            of = kinds.ratios(*pair)
            pair[0]["ratio"], pair[0]["ratio_of_smallest"] = of["median"], of["smallest"]
    return rows


def report_of(rows: list[dict[str, Any]], device: str) -> Report:
    columns = [
        *(Column("what", "what"), Column("measured", "measured"), Column("best", "smallest", ",.4g")),
        *(Column("median", "median", ",.4g"), Column("n", "n", "d"), Column("spread", "spread", ".0%")),
        *(Column("ratio", "of the other", ".2f"), Column("ratio_of_smallest", "of its smallest", ".2f")),
    ]
    title = "Loop beside Keras's fit: seconds of a step, of the first update and of the checks in it, peak memory in MB"
    chart = kinds.chart(Run(kinds.NAME, {"rows": rows}))
    return Report("kinds_of_work", title, columns, rows, chart, about=about_with_gpus() if device == "gpu" else about())


if __name__ == "__main__":
    main()
