"""What an epoch is begun with and must be finished with: its examples, their order, and what its sums add up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from checkpoint_helpers import bits, break_off
from training_helpers import line_net, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.input import input as inputs


def test_within_an_epoch_the_order_of_the_examples_must_stay(
    line: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(line, recipe, mk.train.Checkpoints(tmp_path / "within", every=2), at=3, epochs=2)
    break_off(line, recipe, mk.train.Checkpoints(tmp_path / "end", every="epoch"), at=7, epochs=2)
    monkeypatch.setattr(mk.data.Batches, "order_version", 7)
    with pytest.raises(CheckpointError, match=r"after 2 batches of epoch 0 .* version 1 .* version 7"):
        line.fit(recipe, epochs=2, callbacks=[mk.train.Checkpoints(tmp_path / "within")], verbose=0)
    report = line.fit(recipe, epochs=2, callbacks=[mk.train.Checkpoints(tmp_path / "end")], verbose=0)
    assert len(report.history["loss"]) == 2


@pytest.mark.parametrize(("name", "otherwise"), [("order_version", 1), ("order_workers", None)])
def test_a_position_that_does_not_say_what_its_order_depends_on(name: str, otherwise: int | None) -> None:
    values = Position(**{name: 2}).as_json()
    assert getattr(Position.from_json(values), name) == 2
    del values[name]
    assert getattr(Position.from_json(values), name) == otherwise


def of_own_function(numbers: Any) -> mk.data.Recipe:
    def function(shard: int, num_shards: int) -> tf.data.Dataset:
        return plain_dataset(*numbers, batch=12 // num_shards).shard(num_shards, shard)

    return mk.data.from_function(function, global_batch_size=12)


def test_within_an_epoch_the_number_of_workers_must_stay_where_batches_depend_on_it(
    line: Any, numbers: Any, tmp_path: Path
) -> None:
    data = of_own_function(numbers)
    for every, at in ((2, 3), (5, 6), ("epoch", 6)):  # within the first epoch, before its end, and at its end
        break_off(line, data, mk.train.Checkpoints(tmp_path / str(every), every=every), at=at, epochs=2)

    def go_on(every: int | str, began: int | None) -> None:
        position = line.restore(tmp_path / str(every))
        assert (position.batch, position.order_workers) == (0 if every == "epoch" else every, 1)
        position.order_workers = began
        assert len(line.fit(data, epochs=2, verbose=0).history["loss"]) == 2

    for began in (2, 3):
        on = f"on {began} workers"
        with pytest.raises(CheckpointError, match=f"after 2 batches of epoch 0 .*{on}; found 1"):
            go_on(2, began)
    go_on(2, 1)
    go_on(2, None)  # a checkpoint that does not say
    go_on(5, 2)  # no batch is left of the epoch
    go_on("epoch", 2)
    assert line.position.order_workers == 1


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_that_an_order_depends_on(
    workers: int, strategy_of: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tf.distribute.InputContext(workers, 0, workers) if workers > 1 else None
    monkeypatch.setattr(inputs, "input_context", lambda strategy: context)

    def found(data: Any) -> int | None:
        return inputs.Input(strategy_of("one_device", 1), data).order_workers

    assert found(of_own_function(numbers)) == workers
    assert found(mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True)) is None
    assert found(plain_dataset(*numbers, batch=12)) is None


def _shorter(numbers: Any, count: int) -> Any:
    return mk.data.arrays(*(part[:count] for part in numbers))


@pytest.mark.parametrize("kind", ["recipe", "dataset"])
def test_data_that_grew_within_an_epoch_is_refused_and_welcome_after_it(
    kind: str, line: Any, numbers: Any, tmp_path: Path
) -> None:
    def data(count: int) -> Any:
        if kind == "dataset":
            return plain_dataset(*(part[:count] for part in numbers), batch=12)
        return mk.data.batches(_shorter(numbers, count), global_batch_size=12, shuffle=True)

    for every, at in ((2, 3), (3, 4), ("epoch", 4)):  # within the epoch, before its end, and at it
        break_off(line, data(36), mk.train.Checkpoints(tmp_path / str(every), every=every), at=at, epochs=2)
    found = ("36 examples; found 60", "3 batches .*; found 5")[kind == "dataset"]
    for every in (2, 3):
        with pytest.raises(CheckpointError, match=f"after {every} batches of epoch 0 .* with {found}"):
            line.fit(data(60), epochs=2, callbacks=[mk.train.Checkpoints(tmp_path / str(every))], verbose=0)
    with pytest.raises(CheckpointError, match=r"after 3 batches of epoch 0.*of data with"):
        line.fit(data(24), epochs=2, callbacks=[mk.train.Checkpoints(tmp_path / "3")], verbose=0)
    report = line.fit(data(60), epochs=2, callbacks=[mk.train.Checkpoints(tmp_path / "epoch")], verbose=0)
    assert [epoch.examples for epoch in report.epochs] == [60]
    line.restore(tmp_path / "2").batch = 0  # the epoch again
    report = line.fit(data(60), callbacks=[mk.train.Checkpoints(tmp_path / "again")], verbose=0)
    assert [epoch.examples for epoch in report.epochs] == [60]


@pytest.mark.parametrize("kind", ["resident", "dataset"])
def test_an_epoch_is_finished_on_data_of_the_same_order_alone(
    kind: str, line: Any, numbers: Any, tmp_path: Path
) -> None:
    split = mk.data.arrays(*numbers)
    of = {"global_batch_size": 12, "shuffle": True, "seed": 3}
    break_off(line, mk.data.batches(split, **of), mk.train.Checkpoints(tmp_path, every=2), at=3, epochs=2)
    callbacks = [mk.train.Checkpoints(tmp_path)]
    if kind == "dataset":
        with pytest.raises(CheckpointError, match="shuffle seed=3; found 5 batches"):
            line.fit(plain_dataset(*numbers, batch=12), epochs=2, callbacks=callbacks, verbose=0)
        return
    report = line.fit(mk.data.resident(split, **of), epochs=2, callbacks=callbacks, verbose=0)
    assert [epoch.examples for epoch in report.epochs] == [36, 60]


@pytest.mark.parametrize("kind", ["dataset", "endless dataset", "recipe"])
def test_a_dataset_that_may_shuffle_again_is_named_when_its_epoch_goes_on(
    kind: str, line: Any, numbers: Any, recipe: Any, tmp_path: Path, caplog: Any
) -> None:
    shuffled = plain_dataset(*numbers, batch=12).shuffle(5, seed=0)
    data = {"dataset": shuffled, "endless dataset": shuffled.repeat(), "recipe": recipe}[kind]
    options = {"steps_per_epoch": 5} if kind == "endless dataset" else {}
    break_off(line, data, mk.train.Checkpoints(tmp_path, every=7), at=8, epochs=2, **options)
    line.fit(data, epochs=2, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0, **options)
    said = [record.getMessage() for record in caplog.records if "starts over" in record.getMessage()]
    assert len(said) == (kind == "dataset")
    assert all("after 2 batches of epoch 1" in text and "first 2 batches are skipped" in text for text in said)


@pytest.mark.parametrize(
    ("every", "at", "said"), [(7, 8, "step 7: epoch 2/3, after batch 2"), ("epoch", 6, "step 5: epoch 2/3")]
)
def test_a_run_that_resumes_says_where(
    every: Any, at: int, said: str, line: Any, recipe: Any, tmp_path: Path, capsys: Any
) -> None:
    break_off(line, recipe, mk.train.Checkpoints(tmp_path, every=every), at=at, epochs=3)
    for verbose in (0, 2):
        line.restore(tmp_path)
        line.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path, every=1000)], verbose=verbose)
        lines = [text for text in capsys.readouterr().out.splitlines() if "Resumed" in text]
        assert lines == ([f"Resumed at {said}"] if verbose else [])
        next(tmp_path.glob("step-*15.npz")).unlink()


def test_fewer_steps_per_epoch_than_are_done_are_refused(line: Any, recipe: Any, tmp_path: Path) -> None:
    break_off(line, recipe, mk.train.Checkpoints(tmp_path, every=4), at=5, epochs=2)
    with pytest.raises(CheckpointError, match=r"4 batches of epoch 0 .*found data with 3 batches"):
        line.fit(recipe, epochs=2, steps_per_epoch=3, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"loss": "mae"}, "the loss mean_squared_error .*; found the loss mean_absolute_error"),
        ({"metrics": ["mse"]}, "the metric 'mae' .*; found .*'mse'"),
    ],
)
def test_other_sums_of_the_same_number_within_an_epoch_are_refused(
    options: Any, found: str, line: Any, make_loop: Any, recipe: Any, tmp_path: Path
) -> None:
    for every in (2, "epoch"):
        break_off(line, recipe, mk.train.Checkpoints(tmp_path / str(every), every=every), at=8, epochs=3)
    momentum = lambda: keras.optimizers.SGD(0.05, momentum=0.5)  # noqa: E731
    again = make_loop(("mirrored", 2), line_net, momentum, **{"loss": "mse", "metrics": ["mae"], **options})
    before = bits(again)
    with pytest.raises(CheckpointError, match=rf"after 1 batches of epoch 1 .*those of {found}"):
        again.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path / "2")], verbose=0)
    assert bits(again) != before  # restored; nothing was trained
    again.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path / "epoch")], verbose=0)


def test_other_class_weights_within_an_epoch_are_refused(line: Any, numbers: Any, tmp_path: Path) -> None:
    x = numbers[0]
    recipe = mk.data.batches(mk.data.arrays(x, (x[:, 0] > 0).astype("int64")), global_batch_size=12)
    break_off(line, recipe, mk.train.Checkpoints(tmp_path, every=2), at=3, epochs=2, class_weight={1: 2.0})
    again = {"callbacks": [mk.train.Checkpoints(tmp_path, every=2)], "epochs": 2, "verbose": 0}
    for options, found in (({}, "nothing"), ({"class_weight": {1: 9}}, r"examples weighted by \{1: 9.0\}")):
        with pytest.raises(CheckpointError, match=rf"\{{1: 2.0\}}; found {found}"):
            line.fit(recipe, **again, **options)
    line.fit(recipe, **again, class_weight={1: 2})


def test_within_an_epoch_the_files_must_stay(line: Any, numbers: Any, tmp_path: Path) -> None:
    def recipe(files: int) -> mk.data.Recipe:
        folder = tmp_path / f"{files} files"
        mk.data.write_records(mk.data.arrays(numbers[0], numbers[1]), folder, num_files=files)
        return mk.data.records(folder, global_batch_size=12, shuffle=True)

    folder = tmp_path / "run"
    break_off(line, recipe(2), mk.train.Checkpoints(folder, every=2), at=3, epochs=2)
    with pytest.raises(CheckpointError, match=r"with shuffle seed=0 .*files=(\w+); found .*files=(?!\1)"):
        line.fit(recipe(4), epochs=2, callbacks=[mk.train.Checkpoints(folder)], verbose=0)
    shutil.rmtree(tmp_path / "2 files")
    assert len(line.fit(recipe(2), epochs=2, callbacks=[mk.train.Checkpoints(folder)], verbose=0).history["loss"]) == 2
