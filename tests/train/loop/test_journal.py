"""What a fit tells the launcher of a job whose number of workers may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrorkit as mk
from mirrorkit import journal
from mirrorkit._keras import keras
from mirrorkit.errors import JobError
from mirrorkit.train.loop.journal import journals


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRRORKIT_JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


def _read(path: Path) -> list[journal.Line]:
    lines = [journal.parsed(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line is not None]


def _fit(make_loop: Any, folder: Path | None, *, epochs: int = 1, batch: int = 8) -> None:
    def net() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    loop = make_loop(("one_device", 1), net, keras.optimizers.SGD)
    rng = np.random.default_rng(0)
    split = mk.data.arrays(rng.normal(size=(32, 3)).astype("float32"), rng.normal(size=(32, 1)).astype("float32"))
    callbacks = [] if folder is None else [mk.train.Checkpoints(folder)]
    loop.fit(mk.data.batches(split, global_batch_size=batch), epochs=epochs, verbose=0, callbacks=callbacks)


def test_a_line_at_the_beginning_after_the_restore_after_each_call_and_after_each_save(
    make_loop: Any, path: Path
) -> None:
    _fit(make_loop, path.parent / "saved")
    lines = _read(path)
    assert lines[:2] == [("began", 0), ("restored", 0)]
    assert {line.what for line in lines[2:]} == {"steps", "saved"}
    assert max(line.steps for line in lines if line.what == "steps") == 4
    assert lines[-1] == ("saved", 4)
    path.unlink()
    _fit(make_loop, path.parent / "saved", epochs=2)
    lines = _read(path)
    assert lines[:2] == [("began", 0), ("restored", 4)]
    assert lines[-1].steps == 8


def test_a_line_that_a_full_disk_has_cut_off_is_left_out(path: Path) -> None:
    path.write_text("1700000000.0001700000000.000 restored 3\n1700000001.000 steps 8\n")
    assert _read(path) == [("steps", 8)]


def test_checkpoints_that_end_with_0_are_refused(make_loop: Any, path: Path) -> None:
    checkpoints = mk.train.Checkpoints(path.parent / "saved", exit_code=0)
    with pytest.raises(JobError, match=r"Checkpoints\(exit_code=0\)"):
        list(journals(None, [checkpoints]))


def test_a_journal_that_cannot_be_written_is_no_error(make_loop: Any, path: Path) -> None:
    path.mkdir()
    _fit(make_loop, path.parent / "saved")


def test_a_fit_without_checkpoints_is_refused(make_loop: Any, path: Path) -> None:
    with pytest.raises(JobError, match="no checkpoints"):
        _fit(make_loop, None)
    assert not path.exists()


def test_a_global_batch_that_depends_on_the_number_of_workers_is_refused(make_loop: Any, path: Path) -> None:
    _fit(make_loop, path.parent / "saved")
    with pytest.raises(JobError, match="8 examples; found 16"):
        _fit(make_loop, path.parent / "saved", epochs=2, batch=16)
