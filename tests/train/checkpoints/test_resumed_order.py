"""What an epoch is begun with and must be finished with: its examples, their order, and what its sums add up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
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
from mirrorkit.train.loop.resumed import begin_epoch, require_same_epoch

DATA = {"steps": 5, "class_weight": {1: 2.0}, "starts_over": False}
ORDER = {
    **{"global_batch_size": 12, "num_examples": 60, "order": "shuffle seed=2"},
    **{"order_version": 1, "order_workers": 2},
}
TOTALS = ("the loss mse", "the metric 'mae'")


def go_on(batch: int, totals: Sequence[str] = TOTALS, **changes: Any) -> None:
    """Begin an epoch, and finish it after so many batches with other data or sums."""

    def step(names: Sequence[str]) -> Any:
        return SimpleNamespace(describe_totals=lambda: names)

    position = Position(batch=batch, totals=[0.0] * len(TOTALS))
    begin_epoch(position, SimpleNamespace(**DATA, order=ORDER), step(TOTALS))  # type: ignore[arg-type]
    order = {name: changes.get(name, value) for name, value in ORDER.items()}
    data = SimpleNamespace(**{**DATA, **changes, "order": order})
    require_same_epoch(position, data, step(totals))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_batch_size": 20}, "of 12 .*batches of 20"),
        ({"totals": (*TOTALS, "the metric 'auc'")}, "found the metric 'auc'"),
        ({"totals": ("the loss mae", TOTALS[1])}, "of the loss mse; found the loss mae"),
        ({"class_weight": None}, r"\{1: 2.0\}; found nothing"),
        ({"class_weight": {1: 9}}, r"\{1: 2.0\}; found .*\{1: 9.0\}"),
        ({"num_examples": 84, "steps": 7}, "60 examples; found 84"),
        ({"num_examples": None, "steps": 1}, "found data with 1 batches"),
        ({"order": "5 batches of a tf.data.Dataset"}, "shuffle seed=2; found 5 batches"),
        ({"order_version": 7}, "version 1 .* version 7"),
        ({"order_workers": 3}, "with 2 as the number of workers; found 3"),
    ],
    ids=str,
)
def test_within_an_epoch_all_of_it_must_stay(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=f"after 2 batches .*{words}"):
        go_on(2, **changes)
    if any(name.startswith("order") for name in changes):
        go_on(5, **changes)  # no batch is left


def test_what_is_not_known_is_not_compared(caplog: Any) -> None:
    go_on(2, global_batch_size=None, num_examples=None, order=None, order_workers=None)
    go_on(2)
    assert not caplog.records
    go_on(2, starts_over=True)
    assert "after 2 batches" in caplog.text
    assert "first 2 batches are skipped" in caplog.text


@pytest.mark.parametrize(("name", "otherwise"), [("order_version", 1), ("order_workers", None)])
def test_a_position_that_does_not_say_what_its_order_depends_on(name: str, otherwise: int | None) -> None:
    values = Position(**{name: 2}).as_json()
    assert getattr(Position.from_json(values), name) == 2
    del values[name]
    assert getattr(Position.from_json(values), name) == otherwise


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_that_an_order_depends_on(
    workers: int, strategy_of: Any, numbers: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tf.distribute.InputContext(workers, 0, workers) if workers > 1 else None
    monkeypatch.setattr(inputs, "input_context", lambda strategy: context)

    def of_own_function(shard: int, num_shards: int) -> tf.data.Dataset:
        return plain_dataset(*numbers, batch=12 // num_shards).shard(num_shards, shard)

    def found(data: Any) -> int | None:
        return inputs.Input(strategy_of("one_device", 1), data).order["order_workers"]

    assert found(mk.data.from_function(of_own_function, global_batch_size=12)) == workers
    assert found(recipe) is None
    assert found(plain_dataset(*numbers, batch=12)) is None


def test_a_run_goes_on_with_others_after_an_epoch(
    line: Any, make_loop: Any, numbers: Any, recipe: Any, tmp_path: Path, capsys: Any
) -> None:
    for every in (2, "epoch"):
        break_off(line, recipe, mk.train.Checkpoints(tmp_path / str(every), every=every), at=8, epochs=3)
    momentum = lambda: keras.optimizers.SGD(0.05, momentum=0.5)  # noqa: E731
    again = make_loop(("mirrored", 2), line_net, momentum, loss="mae", metrics=["mae"])
    before = bits(again)
    with pytest.raises(CheckpointError, match=r"mean_squared_error\).*; found .*mean_absolute_error"):
        again.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path / "2")], verbose=2)
    assert "Resumed at step 6: epoch 2/3, after batch 1" in capsys.readouterr().out
    assert bits(again) != before  # restored; nothing was trained
    again.fit(recipe, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path / "epoch")], verbose=2)
    assert "Resumed at step 5: epoch 2/3\n" in capsys.readouterr().out
    again.fit(recipe, epochs=4, callbacks=[mk.train.Checkpoints(tmp_path / "epoch")], verbose=0)
    assert capsys.readouterr().out == ""
    other = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True, seed=1)
    line.restore(tmp_path / "2")
    with pytest.raises(CheckpointError, match="shuffle seed=2; found shuffle seed=1"):
        line.fit(other, epochs=3, verbose=0)
    weighted = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, seed=2, weights=range(1, 61))
    line.restore(tmp_path / "2")
    with pytest.raises(CheckpointError, match="shuffle seed=2; found shuffle seed=2 weights_digest="):
        line.fit(weighted, epochs=3, verbose=0)
    line.restore(tmp_path / "2").batch = 0  # the epoch again
    report = line.fit(other, epochs=3, callbacks=[mk.train.Checkpoints(tmp_path / "again")], verbose=0)
    assert [epoch.examples for epoch in report.epochs] == [60, 60]
