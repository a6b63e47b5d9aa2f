"""Training speed of the Loop beside keras `model.fit`: same net, data, batch and strategy, in turns in one process.

    python examples/benchmarks/loop_against_keras_fit.py --devices cpu:4 --rounds 5

Prints examples per second of every epoch but the first of each contender, which compiles. Other work on the machine
only slows an epoch down, so the fastest epochs are compared, with the medians beside them.
"""

import argparse
import statistics
import time

import keras

import mirrorkit as mk


def model_and_optimizer(strategy):
    with strategy.scope():
        return mk.models.create("mnist_cnn"), keras.optimizers.SGD(0.05, momentum=0.9)


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def keras_fit(strategy, train):
    model, optimizer = model_and_optimizer(strategy)
    with strategy.scope():
        model.compile(optimizer, loss=loss(), metrics=["accuracy"])

    def epoch(number):
        start = time.perf_counter()
        model.fit(train.dataset(number), epochs=1, verbose=0, shuffle=False)
        return train.num_examples / (time.perf_counter() - start)

    return epoch


def mirrorkit_loop(strategy, train):
    model, optimizer = model_and_optimizer(strategy)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss(), metrics=["accuracy"]))

    def epoch(number):
        start = time.perf_counter()
        loop.fit(train, initial_epoch=number, epochs=number + 1, verbose=0)
        return train.num_examples / (time.perf_counter() - start)

    return epoch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu:4", help="as for mk.strategy.create")
    parser.add_argument("--batch-size", type=int, default=256, help="global batch")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each contender, after the one that compiles")
    parser.add_argument("--data-dir", help="folder with MNIST; the synthetic set stands in where there is none")
    args = parser.parse_args()

    strategy = mk.strategy.create("auto", devices=args.devices)
    digits = mk.data.load("mnist", data_dir=args.data_dir, fallback="synthetic")
    train = mk.data.batches(digits.train, global_batch_size=args.batch_size, shuffle=True)
    contenders = {"keras fit": keras_fit(strategy, train), "mirrorkit Loop": mirrorkit_loop(strategy, train)}
    speeds = {name: [] for name in contenders}
    for number in range(args.rounds + 1):
        for name, epoch in contenders.items():
            speed = epoch(number)
            if number:
                speeds[name].append(speed)
    print(f"{mk.strategy.describe(strategy)}; global batch {args.batch_size}; {args.rounds} epochs each, in turns")
    for name, values in speeds.items():
        print(f"{name:15} fastest {max(values):8,.0f}  median {statistics.median(values):8,.0f}  examples/s")
    fit, loop = speeds.values()
    ratios = max(loop) / max(fit), statistics.median(loop) / statistics.median(fit)
    print(f"mirrorkit Loop / keras fit: fastest {ratios[0]:.2f}, median {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
