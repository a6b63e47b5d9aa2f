"""Each worker reads its own rows: a fit goes on within an epoch on any number of workers.

Recipes train the same on workers as rows of the equivalence table do; tests/data has which rows a worker reads.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow

EXAMPLES, BATCH = 100, 24  # the last batch has 4: none for the last of three workers
UNEVEN = 27  # of which two workers have 14 and 13, and of the last 19 three have 7, 7 and 5
PARTS = ["train", "refused"]
Found = list[dict[str, Any]]  # of each worker
SHAPE = (8, 8, 1)


def split() -> mk.data.Split:
    """Images whose first pixel is the example's number."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (EXAMPLES, *SHAPE), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(EXAMPLES)
    return mk.data.arrays(images, rng.integers(0, 2, EXAMPLES))


def noisy(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """An augmentation of a user's."""
    return tf.cast(images, tf.float32) + tf.random.stateless_uniform(tf.shape(images), seed)


def recipes(folder: Path) -> dict[str, mk.data.Recipe]:
    """On the devices and from files, with augmentation; the files are written by the test."""
    augment = [mk.data.augment.pad_and_crop(1), noisy]
    shuffled = {"shuffle": True, "seed": 1, "augment": augment}
    return {
        "resident": mk.data.resident(split(), global_batch_size=UNEVEN, **shuffled),
        "records": mk.data.records(folder / "plain", global_batch_size=BATCH, **shuffled),
    }


def from_function(*, own: bool = True) -> mk.data.Recipe:
    """Each worker's part of the same images; not `own`: all the same ones."""
    whole = split()
    used = EXAMPLES // BATCH * BATCH

    def function(shard: int, num_shards: int, epoch: int) -> tf.data.Dataset:
        numbers = np.random.default_rng(epoch).permutation(used)
        mine = numbers.reshape([-1, num_shards, BATCH // num_shards])[:, shard if own else 0].ravel()
        dataset = tf.data.Dataset.from_tensor_slices((whole.images[mine], whole.labels[mine]))
        return dataset.batch(BATCH // num_shards, drop_remainder=True)

    return mk.data.from_function(function, global_batch_size=BATCH)


class Run:
    """One loop for all fits, each of which begins with the same weights.

    Args:
        files: where the test has written the sets.
        folder: for checkpoints.
    """

    def __init__(self, strategy: tf.distribute.Strategy, files: Path, folder: Path) -> None:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)]
            self.model = keras.Sequential([keras.Input(SHAPE), *layers])
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = mk.train.Loop(strategy, mk.train.Step(self.model, optimizer, loss=loss, metrics=["accuracy"]))
        self.first = [variable.numpy() for variable in self.loop.step.variables]
        self.strategy, self.files, self.folder = strategy, files, folder

    def fit(self, data: Any, **options: Any) -> dict[str, Any]:
        """Train for two epochs from the first weights on; returns weights and history."""
        for variable, value in zip(self.loop.step.variables, self.first, strict=True):
            variable.assign(value)
        self.loop.position = mk.train.Position()
        report = self.loop.fit(data, **{"epochs": 2, "verbose": 0, **options})
        return {"weights": [weight.tolist() for weight in self.model.get_weights()], "history": report.history}

    def train(self) -> dict[str, Any]:
        """Return what a fit of each recipe comes to."""
        return {
            name: self.fit(data) for name, data in {**recipes(self.files), "from_function": from_function()}.items()
        }

    def refused(self) -> str:
        """Return what is said of workers that make the same data."""
        try:
            self.fit(from_function(own=False))
        except mk.errors.DataError as error:
            return str(error)
        return ""

    def leave(self) -> None:
        """Break two fits of `train` off within the second epoch."""
        for name, data in self._broken_off().items():
            with contextlib.suppress(Left):
                self.fit(data, callbacks=[self._checkpoints(name), Leave()])

    def go_on(self) -> dict[str, Any]:
        """Return what these fits come to from their checkpoints in the folder on; or why they do not go on."""
        found: dict[str, Any] = {}
        for name, data in self._broken_off().items():
            try:
                found[name] = self.fit(data, callbacks=[self._checkpoints(name)])
            except mk.errors.CheckpointError as error:
                found[name] = str(error)
        return found

    def parts(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what each of these methods found."""
        return {name: getattr(self, name)() for name in names}

    def _broken_off(self) -> dict[str, mk.data.Recipe]:
        return {"records": recipes(self.files)["records"], "from_function": from_function()}

    def _checkpoints(self, name: str) -> mk.train.Checkpoints:
        return mk.train.Checkpoints(self.folder / "checkpoints" / name, every=1, keep=99)


class Left(Exception):
    """Ends a fit."""


class Leave(keras.callbacks.Callback):
    """Ends a fit in the middle of its second epoch, which has four batches or five."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == 7:
            raise Left


def found_by(strategy: tf.distribute.Strategy, files: Path, folder: Path, *parts: str) -> dict[str, Any]:
    """What new models come to in these parts; they go on from the checkpoints in a folder, and leave some."""
    return Run(strategy, files, folder).parts(parts)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The sets as files."""
    folder = tmp_path_factory.mktemp("files")
    mk.data.write_records(split(), folder / "plain", num_files=3)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) for name in ("two", "again", "three", "alone")}


@pytest.fixture(scope="module")
def two(on_workers, files, folders) -> Found:
    """What two workers found, which left two fits within an epoch."""
    found = on_workers(found_by, files, folders["two"], *PARTS, "leave")
    for name in ("again", "three", "alone"):
        shutil.copytree(folders["two"] / "checkpoints", folders[name] / "checkpoints")
    return found


@pytest.fixture(scope="module")
def again(on_workers, files, folders, two) -> Found:
    """What two workers found, which went on."""
    return on_workers(found_by, files, folders["again"], "go_on")


@pytest.fixture(scope="module")
def three(on_workers, files, folders, two) -> Found:
    """What three workers found, which went on too."""
    return on_workers(found_by, files, folders["three"], *PARTS, "go_on", workers=3)


@pytest.fixture(scope="module", params=["two", "three"])
def found(request) -> Found:
    """What each worker found."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def run(strategy_of, files, folders, two) -> Run:
    """One process with one device."""
    return Run(strategy_of("one_device", 1), files, folders["alone"])


@pytest.fixture(scope="module")
def alone(run) -> dict[str, Any]:
    """What one process on one device comes to."""
    return run.parts(["train", "go_on"])


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_every_worker_has_the_weights_and_the_history_of_one_device(found, alone):
    for name, expected in alone["train"].items():
        first = found[0]["train"][name]
        assert all(worker["train"][name] == first for worker in found), name
        assert_close(first["weights"], expected["weights"])
        for key, values in expected["history"].items():
            np.testing.assert_allclose(first["history"][key], values, atol=1e-5, err_msg=f"{name}: {key}")


def test_workers_that_make_the_same_data_are_refused(found):
    for worker in found:
        assert "begin with the same batch, so examples would be trained on twice" in worker["refused"]


def test_a_fit_goes_on_within_an_epoch_on_any_number_of_workers(alone, two, again, three):
    for resumed in (alone, again[0], three[0]):
        assert_close(resumed["go_on"]["records"]["weights"], alone["train"]["records"]["weights"])
    assert again[0]["go_on"]["records"] == two[0]["train"]["records"]


def test_a_fit_of_data_of_their_own_goes_on_within_an_epoch_only_on_as_many_workers(alone, two, again, three):
    assert again[0]["go_on"]["from_function"] == two[0]["train"]["from_function"]
    for number, workers in ((1, [alone]), (3, three)):
        for worker in workers:
            assert f"with 2 as the number of workers; found {number}. " in worker["go_on"]["from_function"]


def test_between_epochs_it_goes_on_on_any_number(run, alone):
    for file in (run.folder / "checkpoints" / "from_function").iterdir():
        if file.name > "step-0000000004.npz":  # the end of the first epoch
            file.unlink()
    resumed = run.go_on()["from_function"]
    assert_close(resumed["weights"], alone["train"]["from_function"]["weights"])
