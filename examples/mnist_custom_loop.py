"""A custom training loop: compute on every replica, one reduction, the same update everywhere.

Run: python examples/mnist_custom_loop.py --devices cpu:4
"""

from __future__ import annotations

import argparse

import keras
import tensorflow as tf

import mirrorkit as mk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
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
        optimizer = keras.optimizers.Adam(rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    step.build(strategy)

    @tf.function
    def train_step(batch):
        sums = strategy.run(step.compute, args=(batch,))  # per replica: sums of gradients and metrics, example count
        return step.update(strategy, sums)  # one all-reduce of these sums, then the same update on every replica

    @tf.function
    def test_step(batch):
        totals = strategy.run(lambda batch: mk.train.all_reduce(step.test(batch)), args=(batch,))
        return strategy.experimental_local_results(totals)[0]

    test_batches = mk.data.distribute(test, strategy)
    for epoch in range(options.epochs):
        train_batches = mk.data.distribute(train, strategy, epoch=epoch)
        if epoch == 0:  # before timing: trace for any batch size, and run once without any change
            for function, batches in ((train_step, train_batches), (test_step, test_batches)):
                function.get_concrete_function(batches.element_spec)
                mk.timing.warm_up(function, next(iter(batches)), restore=step)
        with mk.timing.Timer() as timer:
            for batch in train_batches:
                logs = train_step(batch)
        results = step.logs(sum(test_step(batch) for batch in test_batches))
        speed = f"{timer.seconds:.2f} s, {train.num_examples / timer.seconds:,.0f} examples/s"
        print(f"epoch {epoch + 1}: {speed}, last loss {logs['loss']:.4f}, test accuracy {results['accuracy']:.4f}")


if __name__ == "__main__":
    main()
