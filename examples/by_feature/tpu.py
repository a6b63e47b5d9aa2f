"""A TPU where there is one, otherwise all GPUs or the CPU, with the same script.

Run: python examples/by_feature/tpu.py
Prints why there is no TPU (as a warning), the strategy in use, and the shapes of the batches, which are all equal and
known in advance, as a TPU requires. mirrorkit has not been run on a TPU yet (docs/tpu.md).
"""

import keras

import mirrorkit as mk

strategy = mk.strategy.create("tpu", fallback=True)  # looks at $TPU_NAME, and for libtpu
print("training on:", mk.strategy.describe(strategy))
keras.config.set_dtype_policy("mixed_bfloat16")  # what a TPU computes in; needs no loss scale

digits = mk.data.synthetic(train=1000, test=512)
train = mk.data.batches(digits.train, global_batch_size=128, shuffle=True, seed=0, drop_remainder=True)
test = mk.data.batches(digits.test, global_batch_size=128, drop_remainder=True)  # 512 = 4 * 128: every example counts

keras.utils.set_random_seed(0)
with strategy.scope():
    model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
report = loop.fit(train, epochs=3, validation_data=test, verbose=0)

print("batches:", sorted({(*x.shape,) for x, _ in train.dataset()}), "-", train.steps_per_epoch, "steps")  # 1000 // 128
print("layers compute in:", model.layers[-2].compute_dtype)
print("val_loss:", *(f"{value:.3f}" for value in report.history["val_loss"]))
