"""Cells of the table in docs/equivalence-table.md: a few corners fast, a sample of all rows slow.

`python tests/equivalence/table.py` measures every cell. The sample is the same every time: row i, counted from 0 in the
order of the table, is trained

- under mirrored with 2 + i % 3 replicas, and at one of the other places of this process in turn: one replica of each
  strategy, central storage, a layout, sharded slots;
- and, where it depends on the other replicas by a mechanism of its own, on 2 or 3 workers in turn; all at once on both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import on_workers
import plain
import pytest
import table
from cases import CASES
from cells import FLOOR, Outcome, difference

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

_SKIPS = 'loss_scale="dynamic", mixed_float16, overflows'
_CORNERS = [
    ("all at once", ("mirrored", 2)),
    ("BatchNorm, empty share", ("central_storage", 3)),
    (_SKIPS, ("mirrored", 2)),
    ("transformer", ("layout", 2)),
    ("Adam", ("shard_optimizer", 3)),
]
# What depends on the other replicas by a mechanism of its own.
_ON_WORKERS = {
    2: ["accumulate", "several inputs and outputs", "BatchNorm, empty share", "Dropout", "all at once"],
    3: [_SKIPS, "AUC", "synchronized BatchNorm, empty share", "all at once"],
}
_OTHERS = [place for place in [*table.HERE, *table.LARGE] if place[0] != "mirrored" or place[1] == 1]


def _sample(name: str) -> list[tuple[str, int]]:
    """Where a row is trained; the rule is at the top."""
    i = list(CASES).index(name)
    return [("mirrored", 2 + i % 3), _OTHERS[i % len(_OTHERS)]]


def _green(name: str, where: list[tuple[str, int]]) -> None:
    row = dict(table.cells(CASES[name], where, table.train_here))
    red = {place: str(cell) for place, cell in row.items() if cell.is_red}
    assert not red, f"difference (control) of {name}: {red}"


@pytest.mark.parametrize(
    ("name", "where"),
    # a layout, fast: parallel/test_placed_training.py
    [pytest.param(*corner, marks=[pytest.mark.slow] * (corner[0] == "transformer")) for corner in _CORNERS],
    ids=[name for name, _ in _CORNERS],
)
def test_a_corner_of_the_table(name: str, where: tuple[str, int]) -> None:
    _green(name, [where])


def test_the_sample_has_every_place() -> None:
    assert {place for name in CASES for place in _sample(name)} == {*table.HERE, *table.LARGE}
    workers = [("multi_worker", workers) for workers in _ON_WORKERS]
    assert [*table.HERE, *table.LARGE, *workers] == table.WHERE


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_row(name: str) -> None:
    _green(name, _sample(name))


@pytest.mark.slow
@pytest.mark.parametrize("workers", _ON_WORKERS)
def test_workers(workers: int) -> None:
    where, names = [("multi_worker", workers)], _ON_WORKERS[workers]
    trainer = table.Trainer(names, where)
    rows = {name: dict(table.cells(CASES[name], where, trainer)) for name in names}
    red = {name: str(cell) for name, row in rows.items() for cell in row.values() if cell.is_red}
    assert not red, f"difference (control) on {workers} workers: {red}"


def test_workers_that_differ_in_a_bit_are_red() -> None:
    found = {"w": np.array([[1.0], [1.0]]), "n": np.array([3, 3])}
    assert not table.Cell(0.0, 0.0, on_workers.disagreeing(found)).is_red
    found["w"][1] = np.nextafter(1.0, 2.0)
    cell = table.Cell(0.0, 0.0, on_workers.disagreeing(found))
    assert cell.is_red
    assert str(cell) == "**0.0e+00 (0.0e+00) workers differ in w**"


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
