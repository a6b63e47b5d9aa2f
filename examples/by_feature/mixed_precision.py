"""Mixed precision: computation in float16, weights in float32, and a loss scale so that small gradients do not vanish.

Run: python examples/by_feature/mixed_precision.py
Prints the dtypes and the dynamic loss scale. The scale starts too high here: the first steps overflow, are skipped on
all replicas, and each halves the scale. With "mixed_bfloat16" no loss scale is needed.
"""

import keras

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
keras.config.set_dtype_policy("mixed_float16")  # before the model is made

digits = mk.data.synthetic(train=1000, test=500)
train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)
keras.utils.set_random_seed(0)
with strategy.scope():
    model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
scale = mk.train.LossScale(initial=2.0**24)  # "dynamic" starts with 2**15
step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], loss_scale=scale)
report = mk.train.Loop(strategy, step).fit(train, epochs=3, verbose=0)

hidden = model.layers[-2]
print("weights:", hidden.kernel.dtype, "- computed in:", hidden.compute_dtype)
print(f"loss scale: from 2**24 to {step.current_loss_scale:,.0f}, steps skipped: {report.skipped_steps}")
updates = int(optimizer.iterations.numpy())
print(f"updates: {updates} = {sum(epoch.steps for epoch in report.epochs)} steps - {report.skipped_steps} skipped")
print("loss:", *(f"{value:.3f}" for value in report.history["loss"]))
