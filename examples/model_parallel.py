"""A transformer on the rows of MNIST's images, with the first half on one device and the second half on another.

Run: python examples/model_parallel.py --devices cpu:2 --limit 2048 --epochs 1
     python examples/model_parallel.py --devices cpu:4   # two replicas of two devices each
"""

from __future__ import annotations

import argparse

import keras
from keras import layers as L

import mirrorkit as mk


def block(number: int, width: int) -> keras.Model:
    x = keras.Input([28, width])
    attended = L.MultiHeadAttention(4, width // 4, name=f"attention{number}")(x, x)
    h = L.LayerNormalization(name=f"norm{number}a")(x + L.Dropout(0.1, seed=number)(attended))
    out = L.LayerNormalization(name=f"norm{number}b")(h + L.Dense(width, "gelu", name=f"dense{number}")(h))
    return keras.Model(x, out, name=f"block{number}")


def transformer(blocks: int, width: int, *, recompute: bool) -> keras.Model:
    x = keras.Input([28, 28, 1])
    h = L.Dense(width, name="embed")(L.Reshape([28, 28])(L.Rescaling(1 / 255)(x)))
    for number in range(blocks):
        part = block(number, width)
        h = (mk.parallel.Recompute(part, name=f"recompute{number}") if recompute else part)(h)
    return keras.Model(x, L.Dense(10, name="head")(L.GlobalAveragePooling1D()(h)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--devices", default="gpu:2", help="two for each replica: gpu:2, gpu:4, cpu:2, ...")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size, over all replicas")
    parser.add_argument("--limit", type=int, help="train on so many images; default: all")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--recompute", action="store_true", help="keep no activations within the blocks")
    options = parser.parse_args()

    def make_model() -> keras.Model:
        keras.utils.set_random_seed(0)
        return transformer(options.blocks, options.width, recompute=options.recompute)

    rules = mk.parallel.balanced_rules(make_model, 2, batch_size=options.batch_size)
    layout = mk.parallel.Layout(rules, devices=options.devices)
    strategy = layout.strategy()
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    train = mk.data.batches(digits.train[: options.limit], global_batch_size=options.batch_size, shuffle=True, seed=0)
    test = mk.data.batches(digits.test[: options.limit], global_batch_size=options.batch_size)
    with layout, strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    print(mk.checks.on_devices(loop, train))
    report = loop.fit(train, epochs=options.epochs, validation_data=test)
    print(f"{mk.strategy.describe(strategy)}: {report.summary()}")


if __name__ == "__main__":
    main()
