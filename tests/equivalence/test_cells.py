"""Cells of the table in docs/equivalence-table.md: a few corners, and those of workers. All rows: test_every_row.py.

`python tests/equivalence/table.py` measures every cell.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import on_workers
import plain
import pytest
import table
from cases import CASES
from cells import FLOOR, Outcome, difference

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

_SKIPS = 'loss_scale="dynamic", mixed_float16, overflows'
# What depends on the other replicas by a mechanism of its own.
_ON_WORKERS = {
    2: ["BatchNorm, empty share", "all at once", "image_folder", "large table, Adagrad"],
    3: [_SKIPS, "synchronized BatchNorm, empty share", "records", "large table, Adam"],
}


def test_a_corner_of_the_table() -> None:
    """A layout: parallel/test_placed_training.py; all rows: test_every_row.py."""
    ((_, cell),) = table.cells(CASES["Adam"], [("shard_optimizer", 3)], table.train_here)
    assert not cell.is_red, str(cell)


@pytest.mark.slow
@pytest.mark.parametrize("workers", _ON_WORKERS)
def test_workers(workers: int) -> None:
    where = [("multi_worker", workers)]
    names = [name for name in _ON_WORKERS[workers] if importlib.util.find_spec(CASES[name].needs)]
    trainer = table.Trainer(names, where)
    rows = {name: dict(table.cells(CASES[name], where, trainer)) for name in names}
    red = {name: str(cell) for name, row in rows.items() for cell in row.values() if cell.is_red}
    assert not red, f"difference (control) on {workers} workers: {red}"


def test_rows_of_large_tables_are_for_every_optimizer_but_those_refused() -> None:
    measured = {type(case.optimizer()) for case in CASES.values() if case.large_table}
    kinds = [kind for kind in vars(keras.optimizers).values() if isinstance(kind, type) and kind not in measured]
    left = {kind.__name__: kind for kind in kinds if issubclass(kind, keras.optimizers.Optimizer)}
    for wrapper in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):  # which no step takes
        left.pop(wrapper, None)
    assert left.keys() >= {"Adafactor", "Ftrl", "Lamb"}
    for name, kind in left.items():
        with pytest.raises(StepError, match=rf"sparse_embeddings=True .*found \S+\.{name}\."):
            mk.train.Step(CASES["large table, SGD"].net(), kind(), loss="mse", sparse_embeddings=True)


def test_workers_that_differ_in_a_bit_are_red() -> None:
    found = {"w": np.array([[1.0], [1.0]]), "n": np.array([3, 3])}
    assert not table.Cell(0.0, 0.0, on_workers.disagreeing(found)).is_red
    found["w"][1] = np.nextafter(1.0, 2.0)
    cell = table.Cell(0.0, 0.0, on_workers.disagreeing(found))
    assert cell.is_red
    assert str(cell) == "**0.0e+00 (0.0e+00) workers differ in w**"


@pytest.mark.slow
def test_the_cases_do_what_they_are_named_after() -> None:
    """Twenty steps that change the weights; steps that overflow, and others that do not."""
    found = plain.train(CASES[_SKIPS], 2)
    assert 2 <= int(found["skipped"]) <= 15
    assert int(found["slots/0"]) == 20 - int(found["skipped"])
    assert float(found["loss scale"]) == 2.0 ** (15 - int(found["skipped"]))
    clipped, free = (plain.train(CASES[name], 1) for name in ("clip_norm", "SGD"))
    assert difference(clipped, free) > 0.01


@pytest.mark.parametrize(
    ("found", "expected", "result"),
    [
        ({"w": [1.0, 2.0]}, {"w": [1.0, 2.5]}, 0.2),  # relative above 1
        ({"w": [[0.5], [0.75]]}, {"w": [0.5]}, 0.25),  # the copies of two replicas
        ({"n": [1005]}, {"n": np.int64([1000])}, 5.0),  # integers are exact
        ({"w": [np.nan]}, {"w": [np.nan]}, np.inf),
    ],
)
def test_difference(found: Any, expected: Any, result: float) -> None:
    assert difference(found, expected) == pytest.approx(result)


def test_the_command_writes_the_page_and_fails_on_a_red_cell(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    def wrong_on_two(case: Any, kind: str, replicas: int) -> Outcome:
        off = 0.5 if (kind, replicas) == ("mirrored", 2) else 0.0
        return {"w": np.array([1.0 + off + 0.9 * FLOOR])}

    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "train_here", wrong_on_two)
    monkeypatch.setattr(plain, "train", lambda case, shards, reordered=False: {"w": np.array([1.0])})
    monkeypatch.setattr(table, "WHERE", table.HERE)
    monkeypatch.setattr(table, "CASES", {name: CASES[name] for name in ("SGD", "BatchNorm")})
    monkeypatch.setattr("sys.argv", ["table.py", "--write", str(page)])
    assert table.main() == 1
    assert "2 cells differ by more than rounding explains" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("before\n<!-- table")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "old" not in text
    assert "python tests/equivalence/table.py" in text
    assert "| SGD | whole batch | 9.0e-07 (0.0e+00) | **5.0e-01 (0.0e+00)** | 9.0e-07 (0.0e+00) |" in text
    assert "| BatchNorm | N shards |" in text

    monkeypatch.setattr(table, "WHERE", [("one_device", 1), ("mirrored", 3)])
    assert table.main() == 0
    page.write_text("a page without a place for the table")
    with pytest.raises(SystemExit, match="lacks the lines"):
        table.main()
