"""A sample of the corpus: a few nets on one device and two replicas; slow: every kind, and some on workers."""

from __future__ import annotations

import dataclasses

import corpus
import corpus_table
import numpy as np
import pytest
from corpus import ENTRIES, KINDS, Cell, References, cells, here
from entries import ONE, TWO, WORKERS

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
BY_HAND = ["a training loop by hand", "GAN"]
ON_WORKERS = ("recommender, large tables: Adagrad", "SimCLR")  # beginnings of names


def test_the_sample_has_every_kind() -> None:
    assert [ENTRIES[name].kind for name in SAMPLE] == list(KINDS)
    assert len(ENTRIES) >= 40


@pytest.mark.slow
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
    rows |= corpus_table.measure([*BY_HAND, *(name for name in SAMPLE if name not in FAST)], (TWO,))
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


def test_an_open_row_that_is_right_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "linear regression"
    monkeypatch.setitem(ENTRIES, name, dataclasses.replace(ENTRIES[name], open="not yet right"))
    assert corpus_table.failures({name: {ONE: Cell(0.5)}}) == []
    assert corpus_table.failures({name: {ONE: Cell(1e-7, 1e-7)}}) == [(name, "is no longer open")]
