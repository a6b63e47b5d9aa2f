"""A run that was broken off and goes on from its checkpoint ends with the bits and the history of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_helpers import bits, break_off, check_resumed, names, saved_at, spoil
from step_helpers import Line
from table_helpers import SIZE, UNEVEN, WIDTH, batches, net, words
from training_helpers import as_new, largest_difference, line_net, plain_dataset, sequential, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError, StepError
from mirrorkit.variables import copies

L = keras.layers


def test_bits_and_history_are_those_of_an_unbroken_run(
    loop: Any, pictures: Any, tmp_path: Path, assert_replicas_equal: Any
) -> None:
    """Broken off again and again: in the first epoch, and in the second after its last batch, before its validation."""
    check_resumed(loop, pictures, tmp_path, every=2, at=(3, 11), epochs=3, validation_data=pictures)
    assert {*saved_at(2, 10)} <= {*names(tmp_path)}
    assert_replicas_equal(loop)


def test_a_new_process_names_its_layers_anew(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Models made one after the other have layers dense, dense_1, ...: the number says nothing about the model."""

    def run() -> Any:
        return make_loop(("one_device", 1), lambda: sequential((4,), L.Dense(2), L.Dense(1)), keras.optimizers.Adam)

    one, two = run(), run()
    assert [v.path for v in one.step.variables] != [v.path for v in two.step.variables]
    one.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    two.restore(tmp_path)
    assert bits(two) == bits(one)


def test_two_replicas_go_on_as_one(fresh: Any, recipe: Any, make_loop: Any, tmp_path: Path) -> None:
    history = fresh.fit(recipe, epochs=2, verbose=0).history
    expected = values_of(fresh)
    as_new(fresh)
    break_off(fresh, recipe, mk.train.Checkpoints(tmp_path, every=2), at=4, epochs=2)
    one = make_loop(("one_device", 1), line_net, lambda: keras.optimizers.SGD(0.05, momentum=0.5), metrics=["mae"])
    one.restore(tmp_path)
    one.warm_up(recipe)
    resumed = one.fit(recipe, epochs=2, verbose=0).history
    assert largest_difference(values_of(one), expected) < 1e-6
    np.testing.assert_allclose(resumed["loss"], history["loss"], rtol=1e-6)
    assert len(one.fit(recipe, verbose=0).history["loss"]) == 1, "the next fit is one of its own"


@pytest.mark.parametrize("initial_epoch", [0, 2])
def test_a_users_dataset_is_skipped_to_the_position(
    initial_epoch: int, line: Any, numbers: Any, tmp_path: Path
) -> None:
    """Epochs of three of its five batches, one after the other; the first one of the fit begins with the first."""
    data, ends = plain_dataset(*numbers, batch=12), 4 + initial_epoch
    options = {"epochs": ends, "initial_epoch": initial_epoch, "steps_per_epoch": 3}
    check_resumed(line, data, tmp_path, every=2, at=[9], **options)


class Batches(keras.utils.PyDataset):  # type: ignore[name-defined, misc]
    """Five batches of arrays."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__()
        self.arrays = arrays

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[np.ndarray, ...]:
        return tuple(array[12 * number : 12 * number + 12] for array in self.arrays)


@pytest.mark.parametrize("kind", ["arrays", "PyDataset"])
def test_epochs_that_go_on_from_one_to_the_next(kind: str, line: Any, numbers: Any, tmp_path: Path) -> None:
    """A run that is resumed need not be asked with the same epochs, and their order must be the same within one."""
    x, y = numbers
    data, of_data = (x, {"y": y, "batch_size": 12}) if kind == "arrays" else (Batches(x, y), {})
    options: dict[str, Any] = {**of_data, "steps_per_epoch": 3, "verbose": 0}
    start = values_of(line)
    line.fit(data, seed=1, epochs=4, **options)
    expected = bits(line)
    set_values(line, start)
    break_off(line, data, mk.train.Checkpoints(tmp_path, every=1), at=8, seed=1, epochs=3, **of_data, steps_per_epoch=3)
    with pytest.raises(CheckpointError, match=r"seed=1.*seed=2"):
        line.fit(data, seed=2, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path)], **options)
    again = [mk.train.Checkpoints(tmp_path)]
    report = line.fit(data, seed=1, epochs=4, initial_epoch=2, callbacks=again, **options)
    assert bits(line) == expected
    assert len(report.history["loss"]) == 4
    assert line.step.model.history.epoch == [0, 1, 2, 3]


class Shuffled(Batches):
    """It shuffles itself at the end of each epoch, by a generator of its own."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__(*arrays)
        self.rng = np.random.default_rng(0)

    def on_epoch_end(self) -> None:
        order = self.rng.permutation(len(self.arrays[0]))
        self.arrays = tuple(array[order] for array in self.arrays)


@pytest.mark.parametrize("steps", [None, 3])
def test_a_dataset_that_shuffles_itself_is_told_of_the_epochs_before(
    steps: int | None, line: Any, numbers: Any, tmp_path: Path, caplog: Any
) -> None:
    options = {"steps_per_epoch": steps, "shuffle": False, "epochs": 4}
    start = values_of(line)
    line.fit(Shuffled(*numbers), verbose=0, **options)
    expected = bits(line)
    set_values(line, start)
    break_off(line, Shuffled(*numbers), mk.train.Checkpoints(tmp_path, every=1), at=11, **options)
    line.fit(Shuffled(*numbers), callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0, **options)
    assert bits(line) == expected
    assert "Shuffled.on_epoch_end is called now for each epoch before this run went on (2)" in caplog.text


@pytest.mark.parametrize("where", ["loss", "rate", "model"])
def test_a_variable_that_no_checkpoint_holds_is_named(
    where: str, strategy_of: Any, make_loop: Any, recipe: Any, tmp_path: Path, caplog: Any
) -> None:
    """A callback changes it, and training reads it; one that is the model's is saved."""
    with strategy_of("one_device", 1).scope():
        factor = keras.Variable(1.0, trainable=False, name=f"factor_in_{where}")
    changes = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: factor.assign(factor + 0.5))

    def net() -> Any:
        model = line_net()
        if where == "model":
            model.factor = factor
        return model

    def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return keras.ops.mean((y - y_pred) ** 2, -1) * (1.0 if where == "rate" else factor)

    def optimizer() -> Any:
        return keras.optimizers.SGD(lambda: 0.01 * factor if where == "rate" else 0.01)

    loop = make_loop(("one_device", 1), net, optimizer, loss=loss)
    loop.fit(recipe, epochs=4, callbacks=[changes, mk.train.Checkpoints(tmp_path)], verbose=0)
    assert caplog.text.count(f"reads the variable factor_in_{where}") == (where != "model")


def test_accumulation_is_never_cut(make_loop: Any, recipe: Any, tmp_path: Path) -> None:
    """Five batches are two updates of two and one of one; a save that falls into an update waits for its end.

    Averages and the loss scale are saved too.
    """
    options = {"accumulate": 2, "ema": 0.9, "loss_scale": "dynamic"}
    loop = make_loop(("mirrored", 2), line_net, lambda: keras.optimizers.Adam(0.1), **options)
    check_resumed(loop, recipe, tmp_path, every=3, at=[12], epochs=3)
    assert names(tmp_path) == saved_at(4, 7, 9, 12, 15)
    paths = " ".join(v.path for v in loop.step.variables)
    assert "average" in paths, paths
    assert "scale" in paths, paths


# --- a run that is over


def test_a_finished_run_trains_nothing_more_and_goes_on_when_asked_for_more(
    fresh: Any, recipe: Any, tmp_path: Path, caplog: Any
) -> None:
    history = fresh.fit(recipe, epochs=4, validation_data=recipe, verbose=0).history
    expected = bits(fresh)
    saver = mk.train.Checkpoints(tmp_path)
    as_new(fresh).fit(recipe, epochs=2, validation_data=recipe, callbacks=[saver], verbose=0)
    after_two, files = bits(fresh), {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    spoil(fresh)
    assert not caplog.records
    for epochs in (2, 1):
        report = fresh.fit(recipe, epochs=epochs, validation_data=recipe, callbacks=[saver], verbose=0)
        assert bits(fresh) == after_two
        assert report.epochs == []
        assert report.history == {name: values[:2] for name, values in history.items()}
        assert report.summary()
        assert f"2 epochs are done, and a fit of {epochs} trains no more" in caplog.text
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    report = fresh.fit(recipe, epochs=4, validation_data=recipe, callbacks=[saver], verbose=0)
    assert report.history == history
    assert bits(fresh) == expected
    assert len(report.epochs) == 2


# --- restore by hand


def test_restore_without_a_checkpoint(fresh: Any, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=f"{folder}"):
            fresh.restore(folder)


# --- a step of the user's own


def test_a_step_of_ones_own(loop_over: Any, recipe: Any, tmp_path: Path) -> None:
    loop = loop_over(Line, steps_per_call=2)
    check_resumed(loop, recipe, tmp_path, every=3, at=[7], epochs=2)

    class Silent:
        build, compute, update = loop.step.build, loop.step.compute, loop.step.update

    with pytest.raises(StepError, match="Silent does not say"):
        loop_over(Silent).fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)


# --- tables that are updated in place


o = keras.optimizers


@pytest.mark.slow
@pytest.mark.usefixtures("small_tables")
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(
    make_loop: Any, tmp_path: Path, assert_replicas_equal: Any
) -> None:
    loop = make_loop(("mirrored", 3), net, lambda: o.Adam(0.05), sparse_embeddings="lazy", steps_per_call=1)
    check_resumed(loop, batches(*words(UNEVEN)), tmp_path, every=2, at=[7], epochs=2)
    assert_replicas_equal(loop)


@pytest.mark.slow
@pytest.mark.usefixtures("small_tables")
def test_replicas_on_cpus_share_what_is_restored(make_loop: Any, tmp_path: Path) -> None:
    """Until one of them writes: two of a large table would be in memory beside the one that was read."""
    trained, resumed = (make_loop(("mirrored", 2), net, lambda: o.Adagrad(0.05)) for _ in range(2))
    trained.fit(batches(*words(UNEVEN)), epochs=1, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    resumed.step.build(resumed.strategy)
    resumed.restore(tmp_path)
    of_table = [copies(v) for v in resumed.step.variables if tuple(v.shape) == (SIZE, WIDTH)]
    assert len(of_table) == 2
    for pair in of_table:
        assert np.shares_memory(*[np.asarray(tf.convert_to_tensor(copy)) for copy in pair])
