"""Two optimizers: a GAN in one dimension, whose generator learns the mean and the spread of the data.

Run: python examples/by_feature/two_optimizers.py
Prints the mean and the spread of the generator's output, before and after training, and the updates of each optimizer.
examples/gan.py draws digits in the same way, with checkpoints and pictures.
"""

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk


class Gan:
    """Updates the discriminator, then the generator, in every step."""

    def __init__(self):
        self.seed = keras.random.SeedGenerator(0)  # other numbers on every replica and in every step
        self.generator = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")])
        self.critic = keras.Sequential([keras.Input([1]), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
        models = [self.generator, self.critic, self.seed]
        self.optimizers = [keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.Adam(0.005, beta_1=0.5)]
        first = mk.train.Step.from_loss(models, self.optimizers[0], self.critic_loss, frozen=self.generator)
        second = mk.train.Step.from_loss(models, self.optimizers[1], self.generator_loss, frozen=self.critic)
        self.halves = {"critic": first, "generator": second}

    def made(self, batch):
        return self.generator(keras.random.normal([tf.shape(batch[0])[0], 1], seed=self.seed))

    def critic_loss(self, batch):  # one value for each example
        return (tf.nn.softplus(-self.critic(batch[0])) + tf.nn.softplus(self.critic(self.made(batch))))[:, 0]

    def generator_loss(self, batch):
        return tf.nn.softplus(-self.critic(self.made(batch)))[:, 0]

    def build(self, strategy):
        for half in self.halves.values():
            half.build(strategy)
        self.variables = [variable for half in self.halves.values() for variable in half.variables]

    def train(self, strategy, batch):
        return {k: h.update(strategy, strategy.run(h.compute, args=(batch,)))["loss"] for k, h in self.halves.items()}


keras.utils.set_random_seed(0)
strategy = mk.strategy.create("mirrored", devices="cpu:2")
noise = np.random.default_rng(0).normal(size=(10_000, 1)).astype("float32")
train = mk.data.batches(mk.data.arrays(3 + 0.5 * noise), global_batch_size=100, shuffle=True, seed=0)
with strategy.scope():
    gan = Gan()
for when, epochs in (("before", 0), ("after", 20)):
    if epochs:
        mk.train.Loop(strategy, gan).fit(train, epochs=epochs, verbose=0)
    numbers = gan.generator(noise).numpy()
    print(f"{when:7} mean {numbers.mean():.2f}, spread {numbers.std():.2f} (data: 3.00, 0.50)")
print("updates:", *(int(optimizer.iterations.numpy()) for optimizer in gan.optimizers))
