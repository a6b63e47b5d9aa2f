"""A transform of your own: noise on the gradient of the whole batch (Neelakantan et al. 2015, arXiv:1511.06807).

Run: python examples/by_feature/gradient_noise.py
Prints that two replicas come to the weights of one, and that a run that was stopped and restarted has the same bits:
the noise follows from the seed and the step.
"""

import tempfile

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

digits = mk.data.synthetic(train=1000, test=100)
train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)


class GradientNoise:
    """Normal noise, less in each step."""

    def __init__(self, stddev, decay=0.55, seed=0):
        self.stddev, self.decay, self.seed = stddev, decay, seed

    def init(self, variables):
        return ()  # no state: what changes is the step

    def update(self, gradients, state, step):
        stddev = self.stddev / (1 + tf.cast(step, tf.float32)) ** self.decay
        seeds = [[self.seed + i, step] for i in range(len(gradients))]
        noise = [tf.random.stateless_normal(g.shape, seed) for g, seed in zip(gradients, seeds, strict=True)]
        return [g + stddev * n for g, n in zip(gradients, noise, strict=True)], state


def run(replicas, epochs, folder=None, **options):
    strategy = mk.strategy.create("mirrored", devices=f"cpu:{replicas}")
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10)]
        model, optimizer = keras.Sequential([keras.Input([28, 28, 1]), *layers]), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, **options)
    callbacks = [mk.train.Checkpoints(folder)] if folder else []
    mk.train.Loop(strategy, step).fit(train, epochs=epochs, callbacks=callbacks, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


noisy = {"transforms": [GradientNoise(stddev=0.1)]}
two, one = run(2, 2, **noisy), run(1, 2, **noisy)
print(f"one replica and two: {np.max(np.abs(one - two)):.0e}; with and without noise: {np.std(two - run(2, 2)):.3f}")
with tempfile.TemporaryDirectory() as folder:
    run(2, 1, folder, **noisy)
    print("the same bits after a restart:", np.array_equal(two, run(2, 2, folder, **noisy)))
