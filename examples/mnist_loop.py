"""An MNIST CNN trained by mirrorkit's Loop on as many replicas as there are devices.

Run: python examples/mnist_loop.py --devices cpu:4
     python -m mirrorkit launch --workers 2 examples/mnist_loop.py
"""

from __future__ import annotations

import argparse

import keras

import mirrorkit as mk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size, over all replicas")
    parser.add_argument("--checkpoints", metavar="FOLDER", help="save here, and resume from the newest checkpoint")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    train = mk.data.batches(digits.train, global_batch_size=options.batch_size, shuffle=True, seed=0)
    test = mk.data.batches(digits.test, global_batch_size=1000)
    print(f"{mk.strategy.describe(strategy)}; {len(digits.train):,} images of {digits.name} ({digits.source})")

    rate = keras.optimizers.schedules.CosineDecay(2e-3, decay_steps=options.epochs * train.steps_per_epoch)
    with strategy.scope():
        model = mk.models.create("mnist_cnn", input_shape=digits.train.images.shape[1:])
        optimizer = keras.optimizers.Adam(rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    loop = mk.train.Loop(strategy, step)
    loop.warm_up(train, validation_data=test)
    callbacks = [mk.train.Checkpoints(options.checkpoints)] if options.checkpoints else []
    report = loop.fit(train, epochs=options.epochs, validation_data=test, callbacks=callbacks)
    print(f"{mk.strategy.describe(strategy)}: {report.summary()}")
    print(f"test accuracy {loop.evaluate(test)['accuracy']:.4f}")


if __name__ == "__main__":
    main()
