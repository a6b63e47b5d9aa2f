"""Train the same model for the same epochs under every strategy that this machine can run, each in its own process.

Run: python examples/compare_strategies.py --plot strategies.png

Virtual CPU devices share the cores, so their table shows what a strategy costs, not how it scales. If GPUs are
measured, the second row is one CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing

import keras
import tensorflow as tf

import mirrorkit as mk


def measure(kind: str, devices: str, digits: mk.data.Splits, batch_size: int, epochs: int) -> tuple[float, float]:
    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(kind, devices=devices)
    train = mk.data.batches(digits.train, global_batch_size=batch_size, shuffle=True, seed=0)
    test = mk.data.batches(digits.test, global_batch_size=1000)
    with strategy.scope():
        model = mk.models.create("mnist_cnn", input_shape=digits.train.images.shape[1:])
        optimizer = keras.optimizers.Adam(2e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    loop.warm_up(train, validation_data=test)
    report = loop.fit(train, epochs=epochs, verbose=0)
    return report.examples_per_second, loop.evaluate(test)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="auto: all; or one to compare with one_device")
    parser.add_argument("--devices", help="the most to use: cpu:4, gpu:2, ...; default: all GPUs, or cpu:4")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256, help="global batch size, over all replicas")
    parser.add_argument("--plot", metavar="FILE", help="plot speed and accuracy (needs matplotlib)")
    options = parser.parse_args()

    gpus = len(tf.config.list_physical_devices("GPU"))
    device, _, most = (options.devices or ("gpu" if gpus else "cpu:4")).partition(":")
    counts = [n for n in (2, 4, 8) if n <= int(most or gpus or 1)]
    layouts = [("one_device", 1), *(("mirrored", n) for n in counts), *(("central_storage", n) for n in counts[:1])]
    layouts = [(kind, device, n) for kind, n in layouts if options.strategy in ("auto", kind) or kind == "one_device"]
    if device == "gpu":
        layouts.insert(1, ("one_device", "cpu", 1))
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    names, speeds, accuracies = [], [], []
    table = [f"{'strategy':16}{'device':>7}{'replicas':>9}{'examples/s':>12}{'speed-up':>10}{'accuracy':>10}"]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a new process for each layout
        for kind, on, n in layouts:
            print(f"{kind} on {on}:{n}: compiles, then trains {options.epochs} epochs ...", flush=True)
            speed, accuracy = pool.apply(measure, (kind, f"{on}:{n}", digits, options.batch_size, options.epochs))
            names, speeds, accuracies = [*names, f"{kind}, {on}:{n}"], [*speeds, speed], [*accuracies, accuracy]
            print(f"{kind} on {on}:{n}: {speed:,.0f} examples/s, test accuracy {accuracy:.4f}", flush=True)
            table.append(f"{kind:16}{on:>7}{n:9}{speed:12,.0f}{speed / speeds[0]:10.2f}{accuracy:10.4f}")
    print(*table, "Dropout draws others on each number of replicas: accuracies differ by chance.", sep="\n")
    if device == "cpu":
        print("Virtual CPU devices share the same cores: this shows what a strategy costs, not how it scales.")
    if options.plot:
        from matplotlib.figure import Figure  # pip install matplotlib

        left, right = Figure(figsize=(7, 3)).subplots(1, 2, sharey=True)
        left.barh(names, speeds)
        left.set(xlabel="examples/s", title=f"mnist_cnn on {digits.name}, global batch {options.batch_size}")
        right.plot(accuracies, names, "o")
        right.set(xlabel="test accuracy", title="Dropout: differs by chance")
        left.invert_yaxis()
        left.figure.savefig(options.plot, bbox_inches="tight")


if __name__ == "__main__":
    main()
