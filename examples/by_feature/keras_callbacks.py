"""Keras's callbacks: TensorBoard, CSVLogger and EarlyStopping, as in Keras's `fit`.

Run: python examples/by_feature/keras_callbacks.py
Prints the epoch after which training stopped, the rows of the CSV file, and the curves in TensorBoard's log. On several
workers the chief alone writes these files, and all workers stop after the same epoch. The first of the three callbacks
needs TensorBoard: pip install -e '.[tensorboard]'
"""

import csv
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=200, test=500)  # so few that the model soon knows them by heart
train = mk.data.batches(digits.train, global_batch_size=50, shuffle=True, seed=0)
test = mk.data.batches(digits.test, global_batch_size=500)

keras.utils.set_random_seed(0)
with strategy.scope():
    model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))

with tempfile.TemporaryDirectory() as folder:  # yours: "runs/first", and in a shell tensorboard --logdir runs
    callbacks = [
        keras.callbacks.TensorBoard(folder),
        keras.callbacks.CSVLogger(f"{folder}/epochs.csv"),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]
    report = loop.fit(train, epochs=50, validation_data=test, callbacks=callbacks, verbose=0)
    losses = report.history["val_loss"]
    print(f"stopped after epoch {len(losses)} of 50; the best was epoch {np.argmin(losses) + 1}")
    print(f"the best val_loss: {min(losses):.4f}, of the restored weights: {loop.evaluate(test)['loss']:.4f}")

    with open(f"{folder}/epochs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    print(f"epochs.csv: {len(rows)} rows of {', '.join(rows[0])}")
    for part in ("train", "validation"):
        records = tf.data.TFRecordDataset([str(path) for path in Path(folder, part).iterdir()])
        events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
        curves = {value.tag for event in events for value in event.summary.value if value.tag.startswith("epoch_")}
        print(f"TensorBoard, {part}:", *sorted(curves))
