"""A sample of the corpus: a few nets on one device and two replicas; slow: every kind, and some on workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import corpus
import corpus_table
import numpy as np
import pytest
from corpus import ENTRIES, KINDS, Cell, References, cells, here
from entries import ONE, PLACES, TWO, WORKERS, Fit

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")

SAMPLE = [
    "linear regression",
    "CNN, plain BatchNorm",
    "bag of words: Embedding, mean under a mask, SGD",
    "StringLookup in the pipeline",
    "a Loss subclass that is not registered",
    "Gemma language model, LoRA",
    "siamese net, contrastive pairs",
    "Step.from_loss: the hardest negative of the batch",
]
FAST = ("linear regression", "Step.from_loss: the hardest negative of the batch")
ON_WORKERS = ("recommender, large tables: Adagrad", "SimCLR")  # beginnings of names


def test_the_sample_has_every_kind() -> None:
    assert [ENTRIES[name].kind for name in SAMPLE] == list(KINDS)
    assert len(ENTRIES) >= 40


@pytest.mark.parametrize("name", FAST)
def test_an_entry(name: str) -> None:
    row = cells(ENTRIES[name], here(ENTRIES[name]))
    assert not {place: cell for place, cell in row.items() if cell.is_red}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sample_of_the_nets_on_replicas_and_workers() -> None:
    """The command measures all, on one device too."""
    on_workers = [name for name in ENTRIES if name.startswith(ON_WORKERS) or ENTRIES[name].open]
    rows = corpus_table.measure(on_workers, (TWO, WORKERS))
    rows |= corpus_table.measure([name for name in SAMPLE if name not in FAST], (TWO,))
    assert not [(name, place, rows[name].get(place)) for name, place in corpus_table.failures(rows)]


def test_what_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    trains, refused = ENTRIES["linear regression"], ENTRIES["stateful LSTM"]
    right = {"weights/0": np.ones((1, 2))}
    monkeypatch.setattr(corpus, "_outcome", lambda *arguments: {"weights/0": np.ones(2)})
    assert not References(trains).cell(ONE, right).is_red
    assert not References(trains).cell(ONE, {"weights/0": np.ones((1, 2)) + 9e-7}).is_red
    assert References(trains).cell(ONE, {"weights/0": np.ones((1, 2)) + 2e-6}).is_red
    assert References(trains).cell(ONE, {"weights/1": np.ones((1, 2))}).is_red
    assert References(trains).cell(TWO, {"weights/0": np.float32([[1, 1], [1, 1 + 1e-7]])}).is_red  # of two replicas
    assert References(trains).cell(WORKERS, {"weights/0": np.float32([[1, 1], [1, 1 + 1e-7]])}).is_red
    assert References(trains).cell(ONE, f"StepError: {refused.refused}").is_red
    assert References(refused).cell(ONE, right).is_red
    assert References(refused).cell(ONE, "StepError: something else").is_red
    assert not References(refused).cell(ONE, f"StepError: {refused.refused} and so on").is_red


@pytest.mark.slow  # fast: what is red, above
def test_a_port_that_takes_half_a_step_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRIES["linear regression"]
    port = Fit.port

    def half(self: Any, strategy: Any, train: Any, test: Any) -> Any:
        x, y = train
        return port(self, strategy, (x[::2], y[::2]), test)

    monkeypatch.setattr(Fit, "port", half)
    assert all(cell.is_red for cell in cells(entry, here(entry, [ONE])).values())


def test_the_command_writes_the_page_and_fails_on_a_red_cell(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    good, bad = "linear regression", "stateful LSTM"
    rows = {
        good: {place: Cell(1e-7, 2e-7) for place in PLACES},
        bad: {**{place: Cell(refusal="StepError: a | b") for place in (ONE, TWO)}, WORKERS: Cell(0.5, 1e-7)},
        **{name: {place: Cell(0.5) for place in PLACES} for name in ENTRIES if ENTRIES[name].open},
    }
    page = tmp_path / "page.md"
    page.write_text(f"before\n{corpus_table.BEGIN}\nold\n{corpus_table.END}\nafter\n")
    monkeypatch.setattr(corpus_table, "measure", lambda names: {name: rows[name] for name in names if name in rows})
    monkeypatch.setattr("sys.argv", ["corpus_table.py", "--write", str(page)])
    assert corpus_table.main() == 1
    assert f"1 cells are not as they should be: [('{bad}', '{WORKERS}')]" in capsys.readouterr().out
    text = page.read_text()
    assert "old" not in text
    changed, cell = "+{} -{}".format(*ENTRIES[good].lines_changed), "1.0e-07 (2.0e-07)"
    line = f"| linear regression | `Step.from_compiled` | {changed} | Keras | {cell} | {cell} | {cell} |"
    assert line in text
    assert "| refused | refused | **5.0e-01 (1.0e-07)** |" in text
    assert "- **stateful LSTM**: StepError: a | b\n" in text

    rows[bad] = {place: Cell(refusal="StepError: c") for place in PLACES}
    monkeypatch.setattr("sys.argv", ["corpus_table.py", "--write", str(page), "--only", bad])
    assert corpus_table.main() == 0
    again = page.read_text()
    assert line in again
    assert "a | b" not in again
    assert "- **stateful LSTM**: StepError: c\n" in again
    assert again.count("stateful LSTM") == text.count("stateful LSTM")


def test_an_open_row_that_is_right_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "linear regression"
    monkeypatch.setitem(ENTRIES, name, dataclasses.replace(ENTRIES[name], open="not yet right"))
    assert corpus_table.failures({name: {ONE: Cell(0.5)}}) == []
    assert corpus_table.failures({name: {ONE: Cell(1e-7, 1e-7)}}) == [(name, "is no longer open")]
