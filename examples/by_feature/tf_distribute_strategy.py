"""Your own strategy: `Loop` also trains under a tf.distribute strategy that was created without `mk.strategy.create`.

Run: python examples/by_feature/tf_distribute_strategy.py
Prints the replicas, and that the weights equal those of a strategy of `mk.strategy.create`, bit for bit.
"""

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

cpu = tf.config.list_physical_devices("CPU")[0]  # with GPUs these two lines are not needed
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

digits = mk.data.synthetic(train=2000, test=500)
train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
    report = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss)).fit(train, epochs=2, verbose=0)
    print(f"{mk.strategy.describe(strategy)}: loss {report.history['loss'][-1]:.4f}")
    return model.get_weights()


weights = trained(mine), trained(mk.strategy.create("mirrored", devices="cpu:2"))
print("the same weights:", all(np.array_equal(a, b) for a, b in zip(*weights, strict=True)))
