"""The callback: when it saves and what it keeps, and checkpoints of another model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_helpers import bits, names, saved_at, spoil
from training_helpers import line_net, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import ArgumentError, CheckpointError
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.place import steps_of
from mirrorkit.train.checkpoints.variables import require_same


@pytest.mark.parametrize(
    ("every", "keep", "expected"),
    [("epoch", 3, (10, 15, 20)), (7, 99, (7, 14, 20))],
)
def test_it_saves_when_asked_and_keeps_the_newest(
    every: Any, keep: int, expected: Any, fresh: Any, recipe: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    fresh.fit(recipe, epochs=4, callbacks=[mk.train.Checkpoints(folder, every=every, keep=keep)], verbose=0)
    assert names(folder) == saved_at(*expected)


def test_training_does_not_wait_for_the_disk_but_the_next_save_does(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is written are the values of its step, though training has gone on."""
    go_on, events, seen = threading.Event(), [], {}
    write = checkpoint_file.write

    def slow(path: Path, *args: Any) -> None:
        assert go_on.wait(20), "training waited for the disk"
        write(path, *args)
        events.append(f"written {steps_of(path.name)}")

    monkeypatch.setattr(checkpoint_file, "write", slow)

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            events.append(f"batch {batch}")
            seen[batch + 1] = values_of(loop)
            if batch == 3:  # at whose end the next save is due
                threading.Timer(0.5, go_on.set).start()

    loop = mk.train.Loop(fresh.strategy, fresh.step, steps_per_call=1)
    loop.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path, every=2), Watch()], verbose=0)
    assert events[:5] == ["batch 0", "batch 1", "batch 2", "batch 3", "written 2"]
    assert set(events[5:]) == {"batch 4", "written 4", "written 5"}
    assert events[-1] == "written 5"  # at the end of the training all is written
    for step in (2, 4):
        _, values = checkpoint_file.read(checkpoint_file.path_of(tmp_path, step))
        np.testing.assert_equal(values, seen[step])


def test_only_the_chief_of_a_cluster_writes_and_every_worker_restores(
    fresh: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    expected, files = bits(fresh), names(tmp_path)
    spoil(fresh)
    monkeypatch.setattr(type(fresh.strategy.extended), "should_checkpoint", False)
    fresh.fit(recipe, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    assert bits(fresh) == expected
    fresh.fit(recipe, epochs=2, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    assert bits(fresh) != expected
    assert names(tmp_path) == files


# --- checkpoints of another model


def _described(shapes: dict[str, tuple[int, ...]]) -> list[Any]:
    return [{"path": path, "shape": [*shape], "dtype": "float32"} for path, shape in shapes.items()]


LINE = {"a/kernel": (4, 1), "a/bias": (1,)}


@pytest.mark.parametrize(
    ("saved", "present", "lines"),
    [
        (
            LINE,
            {"a_3/kernel": (4, 2), "a_3/bias": (1,), "dense/kernel": (2, 1)},
            ["  -a/kernel float32 [4, 1]", "  +a/kernel float32 [4, 2]", "  +dense/kernel float32 [2, 1]"],
        ),
        (
            {**LINE, "adam/a_kernel_momentum": (4, 1)},
            {**LINE, "sgd/a_kernel_momentum": (4, 1)},
            ["  -adam/a_kernel_momentum float32 [4, 1]", "  +sgd/a_kernel_momentum float32 [4, 1]"],
        ),
        (LINE, dict(reversed(LINE.items())), ["  +a/bias float32 [1]", "  -a/bias float32 [1]"]),
    ],
    ids=["shapes", "optimizer", "order"],
)
def test_a_checkpoint_of_another_model_lists_what_does_not_fit(saved: Any, present: Any, lines: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        require_same("the file", _described(saved), _described(present))
    head, *listed, cure = str(error.value).splitlines()
    assert head == "The checkpoint the file is of another model or optimizer (- there, + here):"
    assert listed == lines
    assert cure.startswith("Nothing was restored.")


# --- options and places where it cannot work


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep must be .* found 0"),
        ({"every": "step"}, "found 'step'"),
        ({"folder": "nowhere://runs"}, "nowhere://runs .*Protocol not known"),
        ({"folder": ""}, "found ''"),
        ({"exit_code": 300}, "found 300"),
    ],
)
def test_options_that_mean_nothing(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        mk.train.Checkpoints(**{"folder": tmp_path, **options})


def test_the_folder_stays_the_same_if_the_process_changes_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    relative, at_home = mk.train.Checkpoints("runs"), mk.train.Checkpoints("~/runs")
    monkeypatch.chdir("/")
    assert relative.folder == tmp_path / "runs"
    assert at_home.folder == tmp_path / "home" / "runs"
    assert mk.train.Checkpoints(f"file://{tmp_path}/runs").folder == relative.folder


def test_model_fit_is_told_what_to_use(numbers: Any, tmp_path: Path) -> None:
    model = line_net()
    model.compile("sgd", "mse")
    with pytest.raises(CheckpointError, match="BackupAndRestore"):
        model.fit(*numbers, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
