"""One script, the same weights under every strategy: train a small net, compare its weights with those of one device.

Run: python examples/same_weights.py --epochs 2
     python examples/same_weights.py --strategy mirrored --devices cpu:2 --save mirrored.npz

Without --strategy, it runs itself under each strategy in separate processes (two workers for multi_worker) and prints
the largest differences. The net has no ReLU and no max pooling, since these amplify rounding at ties.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

import keras
import numpy as np

import mirrorkit as mk

LAUNCH = {"one_device": [], "mirrored": [], "central_storage": []}
LAUNCH["multi_worker"] = ["-m", "mirrorkit", "launch", "--workers", "2", "--devices-per-worker", "cpu"]


def train(options: argparse.Namespace) -> None:
    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    data = mk.data.batches(digits.train, global_batch_size=options.batch_size, shuffle=True, seed=0)
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 78.6, -0.424), keras.layers.AveragePooling2D(2)]
        layers += [keras.layers.Conv2D(16, 3, strides=2, activation="tanh"), keras.layers.Flatten()]
        layers += [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input(digits.train.images.shape[1:]), *layers])
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    report = loop.fit(data, epochs=options.epochs, verbose=0)
    print(f"{mk.strategy.describe(strategy)}, {digits.name}: accuracy {report.history['accuracy'][-1]:.4f}")
    if options.save and mk.strategy.is_chief(strategy):
        np.savez(options.save, *model.get_weights())


def compare(arguments: list[str]) -> None:
    weights = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, launch in LAUNCH.items():
            devices = ["--devices", "cpu:2"] if kind in ("mirrored", "central_storage") else ["--devices", "cpu"]
            own = ["--strategy", kind, "--save", f"{folder}/{kind}.npz"]
            subprocess.run([sys.executable, *launch, __file__, *devices, *arguments, *own], check=True)
            with np.load(f"{folder}/{kind}.npz") as file:
                weights[kind] = [file[name] for name in file.files]
    for kind, values in weights.items():
        pairs = zip(values, weights["one_device"], strict=True)
        print(f"{kind:16} differs from one_device by {max(np.abs(a - b).max() for a, b in pairs):.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", help="as in mk.strategy.create; default: all of them, one after the other")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: cpu:2 with replicas")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size, over all replicas")
    parser.add_argument("--save", metavar="FILE", help="where to save the weights, with --strategy")
    options = parser.parse_args()
    train(options) if options.strategy else compare(sys.argv[1:])


if __name__ == "__main__":
    main()
