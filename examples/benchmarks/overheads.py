"""The cost of the progress bar, checkpoints and the sync check: epochs with and without each, in turns in one run.

    python examples/benchmarks/overheads.py --devices cpu:4 --rounds 5

Times the whole `fit`, including callbacks, for --epochs epochs. Other work on the machine can only slow a run down, so
the fastest runs are compared; the medians are given too.
"""

import contextlib
import io
import tempfile
import time

import keras
from harness.measure import values_in_turns
from harness.report import SECONDS_COLUMNS, Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--devices", default="cpu:4", help="as for mk.strategy.create")
    parser.add_argument("--batch-size", type=int, default=256, help="global batch")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each variant")
    parser.add_argument("--epochs", type=int, default=4, help="of a run")
    parser.add_argument("--data-dir", help="folder with MNIST; the synthetic set stands in where there is none")
    options = parsed(parser)

    strategy = mk.strategy.create("auto", devices=options.devices)
    digits = mk.data.load("mnist", data_dir=options.data_dir, fallback="synthetic")
    train = mk.data.resident(digits.train, global_batch_size=options.batch_size, shuffle=True, seed=0)
    with strategy.scope():
        model = mk.models.create("mnist_cnn")
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    loop.warm_up(train)
    per_epoch = train.steps_per_epoch

    def seconds(verbose=0, callbacks=()):
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            loop.fit(train, epochs=options.epochs, verbose=verbose, callbacks=list(callbacks))
        return (time.perf_counter() - start) / options.epochs

    check = mk.checks.InSync(every=200)

    def saving():
        with tempfile.TemporaryDirectory() as folder:
            return seconds(callbacks=[mk.train.Checkpoints(folder, every="epoch")])

    variants = {
        "nothing": seconds,
        "progress bar": lambda: seconds(verbose=1),
        "Checkpoints, every epoch": saving,
        "InSync, every 200 steps": lambda: seconds(callbacks=[check]),
    }
    times = values_in_turns(variants, options.rounds, warm_up=1)
    rows = [{"variant": name, **figures(values, smaller_is_better=True)} for name, values in times.items()]
    for row in rows:
        row |= {f"overhead_{key}": row[key] / rows[0][key] - 1 for key in ("best", "median")}
    of = f"{mk.strategy.describe(strategy)}; {per_epoch} steps of {options.batch_size} an epoch of {digits.name}"
    title = f"{of}: seconds of an epoch in runs of {options.epochs}"
    overhead = Column("overhead_best", "overhead", "+.1%"), Column("overhead_median", "of medians", "+.1%")
    columns = (Column("variant", "variant"), *SECONDS_COLUMNS, *overhead)
    present(report_of("overheads", title, columns, rows, unit="seconds of an epoch"), options)


if __name__ == "__main__":
    main()
