"""What the contenders share: the task, its data, and the laps of an epoch. Imports TensorFlow only where it is used."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATE, MOMENTUM = 0.05, 0.9


@dataclass(frozen=True)
class Work:
    """What to train, and on what.

    Attributes:
        net: "cnn" or "linear".
        replicas: in one process; or the number of processes, of which this is number `process`.
        batch_size: global: all replicas together.
        folder: holds images.npy (uint8 [N, H, W, C]), labels.npy (int64 [N]) and the TFRecord shards.
        device: "cpu" or "gpu".
        plain: TensorFlow's own default strategy and threads for the peers, instead of mk.strategy.create's.
        ports: a free port for each process.
    """

    net: str
    replicas: int
    batch_size: int
    folder: str
    device: str = "cpu"
    plain: bool = False
    process: int = 0
    ports: tuple[int, ...] = ()

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.load(Path(self.folder, "images.npy")), np.load(Path(self.folder, "labels.npy"))

    @property
    def records(self) -> str:
        return str(Path(self.folder, "train.index.json"))


def strategy(work: Work, *, own: bool) -> Any:
    """mirrorkit's strategy, which a peer takes too unless TensorFlow's plain one was asked for."""
    import tensorflow as tf

    import mirrorkit as mk

    if own or not work.plain:
        return mk.strategy.create("auto", devices=f"{work.device}:{work.replicas}")
    if work.device == "cpu":
        layout = [tf.config.LogicalDeviceConfiguration()] * work.replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], layout)
    names = [f"/{work.device}:{i}" for i in range(work.replicas)]
    return tf.distribute.OneDeviceStrategy(names[0]) if len(names) == 1 else tf.distribute.MirroredStrategy(names)


def model_and_optimizer(work: Work, strategy: Any) -> tuple[Any, Any]:
    import keras

    import mirrorkit as mk

    keras.utils.set_random_seed(0)
    shape = np.load(Path(work.folder, "images.npy"), mmap_mode="r").shape[1:]
    with strategy.scope():
        model = mk.models.create({"cnn": "mnist_cnn", "linear": "linear"}[work.net], input_shape=shape)
        return model, keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)


def pipeline(work: Work, *, data: str = "memory") -> Any:
    """One epoch of global batches for the peers, newly shuffled whenever it is iterated.

    A permutation, cut into batches of indices and gathered in parallel: what Keras does with arrays, and several times
    faster than shuffle().batch() of single examples. From TFRecord shards: mirrorkit's own pipeline, for all alike.
    """
    import tensorflow as tf

    import mirrorkit as mk

    if data == "records":
        return mk.data.records(
            work.records, global_batch_size=work.batch_size, shuffle=True, drop_remainder=True
        ).dataset()
    with tf.device("CPU:0"):
        images, labels = (tf.constant(array) for array in work.arrays())
    steps = len(labels) // work.batch_size

    def order(_: Any) -> Any:
        places = tf.random.shuffle(tf.range(len(labels)))[: steps * work.batch_size]
        return tf.data.Dataset.from_tensor_slices(tf.reshape(places, [steps, work.batch_size]))

    def gather(places: Any) -> tuple[Any, Any]:
        return tf.gather(images, places), tf.gather(labels, places)

    batches = tf.data.Dataset.range(1).flat_map(order).map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(tf.data.AUTOTUNE)


def steps_per_epoch(work: Work) -> int:
    return len(np.load(Path(work.folder, "labels.npy"), mmap_mode="r")) // work.batch_size


class Laps:
    """Seconds from the start to the end of the first epoch, from there to the end of the second, and so on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def lap(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    def callback(self) -> Any:
        import keras

        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self.lap())
