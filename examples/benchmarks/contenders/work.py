"""What the contenders share: the task, its data, and the laps of an epoch. Imports TensorFlow only where it is used."""

from __future__ import annotations

import abc
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
        batch_size: global: all replicas together.
        folder: holds images.npy (uint8 [N, H, W, C]), labels.npy (int64 [N]) and the TFRecord shards.
        plain: TensorFlow's own default strategy and threads for the peers, instead of mk.strategy.create's.
        kind, devices: of the strategy, as mk.strategy.create takes them.
        replicas: how many; with kind "multi_worker" each is a process, which finds the others in TF_CONFIG.
    """

    net: str
    batch_size: int
    folder: str
    plain: bool
    kind: str
    devices: str | None
    replicas: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels."""
        return np.load(Path(self.folder, "images.npy")), np.load(Path(self.folder, "labels.npy"))

    @property
    def records(self) -> str:
        """The index of the TFRecord shards."""
        return str(Path(self.folder, "train.index.json"))


class Base(abc.ABC):
    """A contender, as `harness.measure` calls it. Its constructor makes data, strategy, model and optimizer."""

    work: Work
    accuracy = 0.0  # of the training, in the last epoch

    @abc.abstractmethod
    def build(self) -> None:
        """Make the rest: compile, build the optimizer."""

    @abc.abstractmethod
    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """Train, and return the seconds of each epoch and the training accuracy of the last one.

        Args:
            epochs: how many.
            steps: of an epoch; all by default.
        """

    def facts(self) -> dict[str, Any]:
        """Build; the first epoch compiles."""
        self.build()
        return {}

    def measure(self, epochs: int) -> list[float]:
        """Train, and return the images per second of each epoch."""
        seconds, self.accuracy = self.train(epochs)
        examples = steps_per_epoch(self.work) * self.work.batch_size
        return [examples / lap for lap in seconds]

    def evaluate(self) -> float:
        """Return the training accuracy of the last epoch."""
        return self.accuracy

    def first_step(self) -> float:
        """Return the seconds from a made model to the end of the first step."""
        start = time.perf_counter()
        self.build()
        self.train(1, steps=1)
        return time.perf_counter() - start


def strategy(work: Work, *, own: bool) -> Any:
    """mirrorkit's strategy, which a peer takes too unless TensorFlow's plain one was asked for."""
    import tensorflow as tf

    import mirrorkit as mk

    if own or not work.plain or work.devices is None:
        return mk.strategy.create(work.kind, devices=work.devices)
    device = work.devices.partition(":")[0]
    if device == "cpu":
        layout = [tf.config.LogicalDeviceConfiguration()] * work.replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], layout)
    names = [f"/{device}:{i}" for i in range(work.replicas)]
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

    def order(seed: Any) -> Any:
        places = tf.random.experimental.stateless_shuffle(tf.range(len(labels)), tf.stack([seed, 0]))
        places = places[: steps * work.batch_size]
        return tf.data.Dataset.from_tensor_slices(tf.reshape(places, [steps, work.batch_size]))

    def gather(places: Any) -> tuple[Any, Any]:
        return tf.gather(images, places), tf.gather(labels, places)

    seeds = tf.data.Dataset.random(seed=0, rerandomize_each_iteration=True).take(1)  # another one in every epoch
    batches = seeds.flat_map(order).map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(tf.data.AUTOTUNE)


def steps_per_epoch(work: Work) -> int:
    return len(np.load(Path(work.folder, "labels.npy"), mmap_mode="r")) // work.batch_size


class Laps:
    """Seconds from the start to the end of the first epoch, from there to the end of the second, and so on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def lap(self) -> None:
        """End an epoch."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    def callback(self) -> Any:
        """Return a Keras callback that takes the laps."""
        import keras

        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self.lap())
