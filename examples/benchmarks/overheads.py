"""What the progress bar, checkpoints and the sync check cost: epochs with and without each, in turns in one run.

    python examples/benchmarks/overheads.py --devices cpu:4 --rounds 5

Times the whole `fit`, including callbacks, for --epochs epochs. Other work on the machine can only slow a run down, so
the fastest runs are compared; the medians are given too.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time

import keras

import mirrorkit as mk
from mirrorkit.bench.machine import about
from mirrorkit.bench.report import figures, write_run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu:4", help="as for mk.strategy.create")
    parser.add_argument("--batch-size", type=int, default=256, help="global batch")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each variant")
    parser.add_argument("--epochs", type=int, default=4, help="of a run")
    parser.add_argument("--data-dir", help="folder with MNIST; the synthetic set stands in where there is none")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()

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
    for variant in variants.values():
        variant()
    times = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, variant in variants.items():
            times[name].append(variant())
    title = f"{mk.strategy.describe(strategy)}; {per_epoch} steps of {options.batch_size} an epoch of {digits.name}"
    if options.json:
        rows = [{"variant": name, **figures(values)} for name, values in times.items()]
        write_run(options.json, "overheads", f"{title}: seconds of an epoch", rows, about())
    print(title)
    print(f"seconds of an epoch in runs of {options.epochs}, n={options.rounds}")
    least, middle = min(times["nothing"]), statistics.median(times["nothing"])
    for name, values in times.items():
        fastest, median = min(values), statistics.median(values)
        overheads = f"{fastest / least - 1:+.1%} (of medians {median / middle - 1:+.1%})"
        print(f"{name:26} fastest {fastest:.3f} s, median {median:.3f} s: {overheads}")


if __name__ == "__main__":
    main()
