"""A GAN on MNIST (a small DCGAN): two optimizers in turn, within Loop.fit.

Run: python examples/gan.py --devices cpu:2 --epochs 5 --folder gan
"""

import argparse

import keras
import tensorflow as tf
from keras import layers as L

import mirrorkit as mk


class Gan:
    """A custom step: updates the discriminator, then the generator against the new discriminator."""

    def __init__(self, generator, discriminator, optimizers):
        self.generator, self.discriminator, self.code_size = generator, discriminator, generator.input_shape[1]
        self.seed = keras.random.SeedGenerator(0)  # other numbers on every replica and in every step
        models = [generator, discriminator, self.seed]
        first = mk.train.Step.from_loss(models, optimizers[0], self.discriminator_loss, frozen=generator)
        second = mk.train.Step.from_loss(models, optimizers[1], self.generator_loss, frozen=discriminator)
        self.halves = {"discriminator": first, "generator": second}

    def drawn(self, batch):
        return self.generator(keras.random.normal([tf.shape(batch[0])[0], self.code_size], seed=self.seed))

    def discriminator_loss(self, batch):  # one value per image; the mean is the step's
        logits, logits_of_drawn = self.discriminator(batch[0]), self.discriminator(self.drawn(batch))
        return tf.nn.softplus(-logits)[:, 0] + tf.nn.softplus(logits_of_drawn)[:, 0]

    def generator_loss(self, batch):
        return tf.nn.softplus(-self.discriminator(self.drawn(batch)))[:, 0]

    def build(self, strategy):
        for half in self.halves.values():
            half.build(strategy)
        self.variables = [variable for half in self.halves.values() for variable in half.variables]  # for Checkpoints

    def train(self, strategy, batch):
        return {k: h.update(strategy, strategy.run(h.compute, args=(batch,)))["loss"] for k, h in self.halves.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size, over all replicas")
    parser.add_argument("--folder", default="gan", help="for drawn digits, and checkpoints from which it resumes")
    options = parser.parse_args()
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    train = mk.data.batches(digits.train, global_batch_size=options.batch_size, shuffle=True, seed=0)
    print(f"{mk.strategy.describe(strategy)}; {len(digits.train):,} images of {digits.name} ({digits.source})")
    with strategy.scope():
        discriminator = mk.models.create("mnist_cnn", num_classes=1)  # takes pixels from 0 to 255
        larger = [L.Conv2DTranspose(filters, 4, 2, "same", use_bias=False) for filters in (32, 16)]
        norms = [L.BatchNormalization(synchronized=True) for _ in larger]
        pixels = L.Conv2D(1, 3, padding="same", activation=lambda x: 255 * keras.ops.sigmoid(x))
        parts = [L.Reshape([7, 7, 64]), larger[0], norms[0], L.ReLU(), larger[1], norms[1], L.ReLU(), pixels]
        generator = keras.Sequential([keras.Input([64]), L.Dense(7 * 7 * 64), *parts])
        gan = Gan(generator, discriminator, [keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(2)])

    def save(epoch, logs):
        rows = tf.reshape(generator(keras.random.normal([64, 64], seed=1)), [8, 8 * 28, 28, 1])
        tf.io.write_file(f"{options.folder}/{epoch:02}.png", tf.io.encode_png(tf.cast(tf.concat([*rows], 1), tf.uint8)))

    pictures = keras.callbacks.LambdaCallback(on_epoch_end=save)
    pictures.chief_only = True
    callbacks = [mk.train.Checkpoints(options.folder), pictures]
    print(mk.train.Loop(strategy, gan).fit(train, epochs=options.epochs, callbacks=callbacks).summary())


if __name__ == "__main__":
    main()
