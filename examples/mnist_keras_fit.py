"""Plain Keras: model.fit under tf.distribute; mirrorkit finds the devices, the strategy and the data.

Run: python examples/mnist_keras_fit.py --devices cpu:4

Keras's fit gives correct results under one_device and mirrored. Under central_storage its loss is wrong; use
mnist_loop.py there.
"""

from __future__ import annotations

import argparse

import keras

import mirrorkit as mk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="auto, one_device, mirrored")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size, over all replicas")
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
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])

    # All epochs in one dataset: otherwise Keras waits for TensorFlow's threads after many epochs (docs/mirrored.md).
    dataset = train.epochs(options.epochs)
    length = {"epochs": options.epochs, "steps_per_epoch": train.steps_per_epoch}
    model.make_train_function()
    batches = strategy.experimental_distribute_dataset(dataset)  # as in fit; no iterator is kept, as above
    mk.timing.warm_up(model.train_function, iter(batches), restore=[model, model.optimizer])
    with mk.timing.Timer() as timer:
        lap = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: timer.lap())
        model.fit(dataset, callbacks=[lap], **length)
    accuracy = model.evaluate(test.dataset(), verbose=0, return_dict=True)["accuracy"]
    speed = len(digits.train) / min(timer.laps)
    print(f"{strategy.num_replicas_in_sync} replicas: {speed:,.0f} examples/s in the fastest epoch")
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
