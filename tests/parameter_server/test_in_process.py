"""Loop under parameter servers: asynchronous, and yet every batch once, sums exact, nothing lost."""

from __future__ import annotations

import math

import pytest

EPOCHS = 3


@pytest.mark.parametrize("data", ["held", "sent", "unknown_length"])
def test_every_example_comes_once_in_an_epoch(two_workers, data):
    assert two_workers[f"counts_{data}"] == [2.0], "in two epochs each example must come twice"
    assert two_workers[f"steps_{data}"] == 2 * two_workers["steps_per_epoch"]


def test_no_update_is_lost(two_workers):
    steps = EPOCHS * two_workers["steps_per_epoch"]
    assert two_workers["iterations"] == steps
    assert two_workers["position"] == [EPOCHS, steps]
    assert two_workers["examples"] == [530] * EPOCHS


def test_momentum_of_a_slow_worker_is_not_that_of_long_ago(two_workers):
    velocity = 0.0
    for _ in range(8):
        velocity = 0.9 * velocity + 1
    assert two_workers["velocity"] == pytest.approx(velocity, rel=1e-5)


def test_callbacks_and_history_are_those_of_keras(two_workers):
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert two_workers["epochs"] == [[epoch, names] for epoch in range(EPOCHS)]
    last = two_workers["steps_per_epoch"] - 1
    assert [batch for batch in two_workers["batches"] if batch == last] == [last] * EPOCHS
    assert two_workers["history"]["val_loss"][-1] == pytest.approx(two_workers["on_workers"]["loss"], rel=1e-6)


@pytest.mark.parametrize("where", ["on_workers", "on_chief", "sent", "resident_on_workers", "resident_on_chief"])
def test_evaluation_is_exact_wherever_it_runs(two_workers, where):
    assert two_workers[where] == pytest.approx(two_workers["by_hand"], rel=1e-5)


def test_predictions_come_in_the_order_of_the_data(two_workers):
    assert two_workers["prediction_error"] < 1e-6


def test_warm_up_compiles_everything_and_changes_nothing(two_workers):
    assert two_workers["unchanged_by_warm_up"]
    assert two_workers["new_traces"] == 0


def test_batch_hooks_come_once_per_call_and_the_log_says_so(two_workers):
    assert 3 <= len(two_workers["batches"]) < 3 * two_workers["steps_per_epoch"]
    (message,) = [text for text in two_workers["told"] if "hook" in text]
    assert "Log has a batch hook of your own: under parameter servers it comes once per call" in message


def test_a_checkpoint_holds_all_of_it(two_workers):
    steps = two_workers["steps_per_epoch"]
    assert two_workers["restored"] == [2, 2 * steps]
    assert two_workers["restored_error"] == 0
    assert two_workers["gone_on"] == 3 * steps


def test_a_loss_that_is_not_finite_names_its_batch(two_workers):
    """NaN is in batch 20; the other worker may still be at one before it when the weights become NaN."""
    step, epoch, batch = two_workers["non_finite"]
    assert step == batch
    assert epoch == 0
    assert 10 < batch <= 20


def test_accumulation_averages_clipping_and_loss_scale(two_workers):
    # 34 batches of 16, the last one smaller: 16 whole updates of two, and one of the rest of two
    assert two_workers["options"] == {"iterations": 2 * 17, "skipped": 0}
    assert math.isfinite(two_workers["averaged"])


def test_a_step_with_an_overflow_is_skipped(two_workers):
    steps = two_workers["steps_per_epoch"]
    assert two_workers["overflow"] == {"iterations": steps - 1, "skipped": 1}


@pytest.mark.parametrize("run", ["augmented", "accumulated"])
def test_one_worker_does_what_one_device_does(one_worker, run):
    found = one_worker[run]
    assert found["variables"] > 20, "weights, statistics, slots and averages are compared"
    assert max(found["weights"], found["history"], found["averaged"]) < 2e-5


def test_a_table_in_shards_on_all_servers(one_worker):
    table = one_worker["table"]
    assert table["shards"] == [[34, 4], [34, 4], [33, 4]]
    assert table["servers"] == ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"]
    assert table["lookup"] == 0
    assert table["error"] < 1e-4, "20 halvings of the distance: every row was looked up and written where it lies"
    assert table["twice"] == pytest.approx([2.0] * 4, abs=1e-6)
    assert (table["small"], table["large"]) == (1, 2), "a small table is not cut"
