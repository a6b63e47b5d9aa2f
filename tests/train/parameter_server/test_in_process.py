"""Loop under parameter servers: asynchronous, and yet every batch once, sums exact, nothing lost."""

from __future__ import annotations

import json

import pytest
import sections

EPOCHS = 3
STEPS = 34  # of an epoch: 530 examples in batches of 16


def test_a_slow_worker_takes_the_newest_momentum(two_workers):
    velocity = 0.0
    for _ in range(8):
        velocity = 0.9 * velocity + 1
    assert two_workers("momentum") == pytest.approx(velocity, rel=1e-5)


def test_a_fit_loses_no_update_and_tells_keras_callbacks(two_workers):
    found = two_workers("fit")
    assert found["iterations"] == EPOCHS * STEPS
    assert found["position"] == [EPOCHS, EPOCHS * STEPS]
    assert found["examples"] == [530] * EPOCHS
    assert found["new_traces"] == 0, "warm_up has compiled everything"
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert found["epochs"] == [[epoch, names] for epoch in range(EPOCHS)]
    assert found["history"]["val_loss"][-1] == pytest.approx(found["val_loss"], rel=1e-6)
    assert [batch for batch in found["batches"] if batch == STEPS - 1] == [STEPS - 1] * EPOCHS
    assert 3 <= len(found["batches"]) < 3 * STEPS, "batch hooks come once per call"
    (message,) = [text for text in found["told"] if "hook" in text]
    assert "Log has a hook for each batch: under parameter servers it comes once per call" in message


def test_evaluation_is_exact_for_every_kind_of_data(two_workers):
    expected, *found = two_workers("evaluate").values()
    assert found == [pytest.approx(expected, rel=1e-5)] * 3


def test_predictions_come_in_the_order_of_the_data(two_workers):
    assert two_workers("predict") < 1e-6


@pytest.mark.slow
def test_no_number_is_drawn_twice_and_state_outside_of_training_is_refused(two_workers_more):
    assert "mean/kept" in (found := two_workers_more("draws")), found
    assert "ParameterServerStrategyV2 does not write" in found


def test_warm_up_changes_nothing(two_workers):
    assert two_workers("warm_up") == {"changes_nothing": True}


@pytest.mark.slow
def test_a_checkpoint_holds_all_of_it(two_workers_more):
    found = two_workers_more("checkpoints")
    assert found["restored"] == [2, 2 * STEPS]
    assert found["error"] == 0
    assert found["gone_on"] == 3 * STEPS


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_its_batch(two_workers_more):
    """NaN is in batch 20; the other worker may still be at one before it when the weights become NaN."""
    step, epoch, batch = two_workers_more("non_finite")
    assert step == batch
    assert epoch == 0
    assert 10 < batch <= 20


@pytest.mark.slow
def test_a_nan_that_the_loss_does_not_show(two_workers_more):
    variable, epoch = two_workers_more("hidden")
    assert variable.endswith("first/kernel")
    assert epoch == 0


@pytest.mark.slow  # one worker; two run in the fast set
def test_one_worker_does_what_one_device_does(one_worker):
    found = one_worker("accumulated")
    assert found["values"] > 20, "with statistics, slots and averages"
    assert found["largest"] < 2e-5


def test_the_one_line_does_on_one_worker_what_it_does_on_one_device(one_worker):
    assert one_worker("one_line")["largest"] < 2e-5


@pytest.mark.slow
def test_layouts_and_sharded_slots_are_refused(one_worker):
    found = one_worker("larger_models")
    assert "A layout goes with one device or mirrored, found ParameterServerStrategy" in found["layout"]
    assert "mk.parallel.PartitionedTable" in found["layout"]
    assert "no copy of the weights on each replica, as mirrored and multi_worker have" in found["shard_optimizer"]


@pytest.mark.slow
def test_a_table_in_shards_on_all_servers(one_worker):
    table = one_worker("table")
    assert table["shards"] == [[34, 4], [34, 4], [33, 4]]
    assert table["servers"] == ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"]
    assert table["lookup"] == 0
    assert table["twice"] == pytest.approx([2.0] * 4, abs=1e-6)
    assert (table["small"], table["large"]) == (1, 2), "a small table is not cut"


def test_a_section_that_fails_shows_its_own_error_and_no_other(capsys):
    def right():
        return 1

    def wrong():
        raise KeyError("here")

    sections.run(right, wrong)
    seen = json.loads(capsys.readouterr().out)
    assert sections.result(seen, "right") == 1
    with pytest.raises(AssertionError, match=r"(?s)wrong failed.*KeyError: 'here'"):
        sections.result(seen, "wrong")
