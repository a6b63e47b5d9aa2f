"""Export and load: a trained model as a .keras file and as a SavedModel, which load without mirrorkit or a strategy.

Run: python examples/by_feature/export_and_load.py
Prints how much the predictions of the loaded models differ from those of the model that was trained on two replicas.
"""

import tempfile

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=2000, test=500)
train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)
test = mk.data.batches(digits.test, global_batch_size=500)

with strategy.scope():
    model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, ema=0.9))
loop.fit(train, epochs=2, verbose=0)
expected = loop.predict(test)

with tempfile.TemporaryDirectory() as folder:
    path = mk.train.export(loop, f"{folder}/digits.keras")
    loaded = keras.saving.load_model(path)
    print(f".keras file: {np.max(np.abs(loaded.predict(digits.test.images, verbose=0) - expected)):.0e}")

    path = mk.train.export(loop, f"{folder}/digits")  # no .keras: a SavedModel, as TensorFlow Serving reads it
    served = tf.saved_model.load(str(path))
    print(f"SavedModel: {np.max(np.abs(served.serve(digits.test.images.astype('float32')) - expected)):.0e}")

    path = mk.train.export(loop, f"{folder}/averaged.keras", averaged=True)  # the moving averages, of ema=0.9
    averaged = keras.saving.load_model(path).predict(digits.test.images, verbose=0)
    print(f"averaged weights, from the trained ones: {np.max(np.abs(averaged - expected)):.0e}")
    with loop.step.averaged():
        print(f"averaged weights, from the loop's averages: {np.max(np.abs(averaged - loop.predict(test))):.0e}")
