"""Seconds of training on CIFAR-10 to 85 % test accuracy: Loop and Keras's `model.fit`, epoch by epoch in turns.

    python examples/benchmarks/cifar10_time_to_accuracy.py --devices cpu:4

Both train the same net with the same schedule, augmentation, batches and strategy; only the time of training epochs
counts, with compilation and without validation. --epochs is the length of the schedule; --stop-after ends both earlier,
to compare only the seconds per epoch.
"""

import time

import keras
from harness.report import SECONDS_COLUMNS, Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--devices", default="cpu:4", help="as for mk.strategy.create")
    parser.add_argument("--batch-size", type=int, default=128, help="global batch")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--stop-after", type=int, help="epochs to train; all by default")
    parser.add_argument("--target", type=float, default=0.85, help="test accuracy")
    parser.add_argument("--data", default="cifar10", choices=["cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="folder with the data")
    options = parsed(parser)

    strategy = mk.strategy.create("auto", devices=options.devices)
    images = mk.data.load(options.data, data_dir=options.data_dir)
    contenders = {"loop": mirrorkit_loop(strategy, images, options), "fit": keras_fit(strategy, images, options)}
    seconds, accuracy = ({name: [] for name in contenders} for _ in range(2))
    reached = {}
    for epoch in range(options.stop_after or options.epochs):
        for name, train in contenders.items():
            if name in reached:
                continue
            spent, value = train(epoch)
            seconds[name].append(spent)
            accuracy[name].append(value)
            print(f"epoch {epoch + 1} {name}: {spent:.1f} s, test accuracy {value:.4f}", flush=True)
            if value >= options.target:
                reached[name] = sum(seconds[name])
    rows = [
        {
            **{"contender": name, **figures(seconds[name], smaller_is_better=True), "accuracies": accuracy[name]},
            **{"accuracy": accuracy[name][-1], "reached": reached.get(name)},
        }
        for name in contenders
    ]
    columns = (Column("contender", "contender"), *SECONDS_COLUMNS, Column("accuracy", "test accuracy", ".4f"))
    columns += (Column("reached", f"s to {options.target:.0%}", ".0f"),)
    notes = [f"loop / fit: {min(seconds['loop']) / min(seconds['fit']):.2f} x the time of fit (fastest epochs)"]
    if len(reached) == 2:
        notes.append(f"loop / fit: {reached['loop'] / reached['fit']:.2f} x the time to {options.target:.0%}")
    title = f"{images.name}, {mk.strategy.describe(strategy)}: seconds of an epoch, and to {options.target:.0%}"
    present(report_of("cifar10_time_to_accuracy", title, columns, rows, unit="seconds", notes=notes), options)


def parts(strategy, images, options):
    """The same for both: recipes for the data, the model, the optimizer and the loss."""
    keras.utils.set_random_seed(0)
    crop = [mk.data.augment.pad_and_crop(2, mode="reflect"), mk.data.augment.flip()]
    batch = {"global_batch_size": options.batch_size, "one_hot": True}
    train = mk.data.batches(images.train, shuffle=True, seed=0, augment=crop, **batch)
    test = mk.data.batches(images.test, global_batch_size=1000, one_hot=True)
    rise = options.epochs * train.steps_per_epoch // 5
    scale = {"global_batch_size": options.batch_size, "base_batch_size": 1024, "rule": "sqrt"}
    peak, decay = mk.batching.scale_learning_rate(0.8, **scale), mk.batching.scale_learning_rate(0.01, **scale)
    rate = keras.optimizers.schedules.CosineDecay(peak / 5, 4 * rise, warmup_target=peak, warmup_steps=rise)
    with strategy.scope():
        model = mk.models.create("speed_net", input_shape=images.train.images.shape[1:])
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=decay)
        optimizer.exclude_from_weight_decay(var_names=["gamma", "beta"])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.05)
    return train, test, model, optimizer, loss


def mirrorkit_loop(strategy, images, options):
    train, test, model, optimizer, loss = parts(strategy, images, options)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))

    def epoch(number):
        start = time.perf_counter()
        loop.fit(train, initial_epoch=number, epochs=number + 1, verbose=0)
        return time.perf_counter() - start, loop.evaluate(test)["accuracy"]

    return epoch


def keras_fit(strategy, images, options):
    train, test, model, optimizer, loss = parts(strategy, images, options)
    with strategy.scope():
        model.compile(optimizer, loss=loss, metrics=["accuracy"])

    def epoch(number):
        start = time.perf_counter()
        model.fit(train.dataset(number), initial_epoch=number, epochs=number + 1, verbose=0, shuffle=False)
        return time.perf_counter() - start, model.evaluate(test.dataset(), verbose=0, return_dict=True)["accuracy"]

    return epoch


if __name__ == "__main__":
    main()
