"""Contrastive learning (SimCLR): every image against all others of the global batch, on any number of replicas.

Two crops of an image should have similar codes, which differ from those of all other images (Chen et al. 2020,
arXiv:2002.05709). Other images are also on other replicas: `mk.train.all_gather` gathers their codes with gradients.

Run: python examples/contrastive.py --devices cpu:4 --epochs 1
     python -m mirrorkit launch --workers 2 examples/contrastive.py
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

SHARPNESS = 5.0  # the inverse of the paper's temperature


def two_crops(images, seed):
    """Return the crops one behind the other, as channels."""
    crop = mk.data.augment.pad_and_crop(4)
    return tf.concat([crop(images, seed), crop(images, seed + 1)], axis=-1)


def contrastive_loss(encoder, head):
    def loss_fn(batch):
        images, _ = batch
        first, second = (tf.math.l2_normalize(head(encoder(crops)), 1) for crops in tf.split(images, 2, axis=-1))
        every = tf.concat(mk.train.all_gather([first, second]), axis=0)  # of the whole batch: [2 * batch, 32]
        same = SHARPNESS * tf.reduce_sum(first * second, axis=1)  # the other crop is on this replica: no index needed
        values = []
        for own in (first, second):
            total = tf.reduce_sum(tf.exp(SHARPNESS * own @ tf.transpose(every)), axis=1) - tf.exp(SHARPNESS)  # itself
            values.append(tf.math.log(total) - same)
        return (values[0] + values[1]) / 2  # of this replica's images, [rows]

    return loss_fn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="auto", choices=["auto", "mnist", "cifar10", "synthetic"])
    parser.add_argument("--data-dir", help="the folder with the files, or its parent")
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="global batch size, over all replicas")
    parser.add_argument("--limit", type=int, help="train on so many images; default: all")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    digits = mk.data.load(options.data, data_dir=options.data_dir)
    known = digits.train[: options.limit]
    train = mk.data.batches(known, global_batch_size=options.batch_size, shuffle=True, seed=0, augment=[two_crops])
    print(f"{mk.strategy.describe(strategy)}; {len(known):,} images of {digits.name} ({digits.source})")

    with strategy.scope():
        encoder = mk.models.create("mnist_cnn", input_shape=known.images.shape[1:], num_classes=64)
        head, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)]), keras.optimizers.Adam(1e-3)
    loss_fn = contrastive_loss(encoder, head)
    loop = mk.train.Loop(strategy, mk.train.Step.from_loss([encoder, head], optimizer, loss_fn, whole_batch=True))
    report = loop.fit(train, epochs=options.epochs)
    print(f"{mk.strategy.describe(strategy)}: {report.summary()}")

    # The codes, which were learnt without a label: the class whose mean is nearest.
    codes, others = (loop.predict(mk.data.batches(part, global_batch_size=1000)) for part in (known, digits.test))
    means = np.stack([codes[known.labels == label].mean(axis=0) for label in range(digits.num_classes)])
    nearest = np.argmin(np.sum((others[:, None] - means) ** 2, axis=-1), axis=1)
    print(f"test accuracy {np.mean(nearest == digits.test.labels):.4f}")


if __name__ == "__main__":
    main()
