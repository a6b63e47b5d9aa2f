"""Gradient accumulation: one update of four batches of 32 is the update of one batch of 128, in the memory of 32.

Run: python examples/by_feature/gradient_accumulation.py
Prints how many updates each run made, and how much their weights differ: only by rounding.
"""

import keras
import numpy as np

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=2048, test=500)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(batch_size, accumulate):
    keras.utils.set_random_seed(0)
    train = mk.data.batches(digits.train, global_batch_size=batch_size, shuffle=True, seed=0)
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(32, "tanh")]
        model = keras.Sequential([keras.Input([28, 28, 1]), *layers, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    step = mk.train.Step(model, optimizer, loss=loss, clip_norm=1.0, accumulate=accumulate)
    report = mk.train.Loop(strategy, step).fit(train, epochs=2, verbose=0)
    batches = sum(epoch.steps for epoch in report.epochs)
    print(f"batches of {batch_size:3}, accumulate={accumulate}: {batches:3} batches,", end=" ")
    print(int(optimizer.iterations.numpy()), "updates")
    return model.get_weights()


pairs = zip(trained(128, accumulate=1), trained(32, accumulate=4), strict=True)
print(f"largest difference of the weights: {max(np.max(np.abs(a - b)) for a, b in pairs):.0e}")
