"""Models on several devices train as on one, and what runs where."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from device_choice import device_name
from executed import executed
from placed_nets import (
    bytes_by_device,
    cnn,
    data,
    halves,
    largest_difference,
    lstm,
    make_loop,
    mlp,
    numbers,
)

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.step.devices import SeveralDevices
from mirrorkit.variables import copies

ONE_ROUNDING = 2.4e-7  # of numbers between 1 and 2


@pytest.fixture(scope="module")
def trained() -> mk.train.Loop:
    """Two replicas of two devices, with averages and accumulated batches."""
    loop: Any = make_loop(mlp, halves(2), 2, ema=0.5, accumulate=2)
    loop.sums, added = [], SeveralDevices.added

    def noted(*args: Any) -> Any:
        sums = added(*args)
        loop.sums.append([gradient.device[-5:] for gradient in sums["gradients"]])
        return sums

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeveralDevices, "added", noted)
        loop.fit(data(mlp), verbose=0)
    return loop


def test_each_device_holds_its_half(trained: mk.train.Loop) -> None:
    """Of weights, slots, averages and the sums of accumulated batches."""
    loop: Any = trained
    first, second = 12 * 16 + 16, 16 * 16 + 16 + 16 * 3 + 3
    assert bytes_by_device(loop.step.model.trainable_variables) == {
        **{device_name(0): 4 * first, device_name(1): 4 * second},
        **{device_name(2): 4 * first, device_name(3): 4 * second},
    }
    found = bytes_by_device(v for v in loop.step.variables if len(v.shape) > 0 and "seed" not in v.path)
    assert found == {device: 4 * size for device, size in bytes_by_device(loop.step.model.trainable_variables).items()}
    of_weights = [[copy.device[-5:] for copy in copies(weight)] for weight in loop.step.model.trainable_variables]
    assert {tuple(found) for found in loop.sums} == set(zip(*of_weights, strict=True))


def test_replicas_agree_and_averages_are_put_in_place(trained: mk.train.Loop) -> None:
    loop: Any = trained
    assert mk.checks.in_sync(loop.strategy, loop.step)
    before = numbers(loop.step.model.trainable_variables)
    with loop.step.averaged():
        assert not np.array_equal(before[0], numbers(loop.step.model.trainable_variables)[0])
        loop.evaluate(data(mlp))
    assert np.array_equal(before[0], numbers(loop.step.model.trainable_variables)[0])


@pytest.mark.slow
@pytest.mark.parametrize("net", [mlp, cnn])
def test_where_a_replica_has_no_example(net: Any) -> None:
    """Random layers draw what two replicas draw.

    Convolutions and pooling take no batch without rows, and where its size is unknown a branch would lie on one of the
    devices.
    """
    found, expected = make_loop(net, halves(2), 2), make_loop(net, None, 2)
    batches: Any = data(net, count=17)
    if net is cnn:
        batches = batches.dataset().unbatch().batch(16)  # of 16 and of 1
    for loop in (found, expected):
        loop.fit(batches, verbose=0)
    assert largest_difference(found, expected) <= ONE_ROUNDING


def test_loss_function_and_prediction() -> None:
    """`Step.from_loss` follows its models' variables; in validation too."""

    def trained(layout: Any) -> tuple[mk.train.Loop, dict[str, list[float]]]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        strategy = layout.strategy() if layout else mk.strategy.create("one_device", devices="cpu:1")
        with layout or nullcontext(), strategy.scope():
            model, optimizer = mlp(), keras.optimizers.Adam(1e-2)
        losses = keras.losses.sparse_categorical_crossentropy
        step = mk.train.Step.from_loss(
            model, optimizer, lambda batch: losses(batch[1], model(batch[0]), from_logits=True)
        )
        loop = mk.train.Loop(strategy, step)
        return loop, loop.fit(data(mlp), validation_data=data(mlp), verbose=0).history

    (found, history), (expected, other) = trained(halves()), trained(None)
    assert largest_difference(found, expected) <= ONE_ROUNDING
    assert history == {name: pytest.approx(values, rel=1e-6) for name, values in other.items()}
    assert np.array_equal(found.predict(data(mlp)), expected.predict(data(mlp)))


# --- forward pass, backward pass and update run where the weights lie


# Of each half: its products in the forward pass, and two for each in the backward pass, for the weights and for the
# inputs; the first layer's inputs need none. An update writes each weight, two slots of it, the seeds and statistics of
# layers, and iterations on the first device; it takes the root of each weight's or group of small weights' slot, and on
# the first device those of two numbers that all have in common.
EXPECTED = {
    mlp: [
        {"forward": 1, "backward": 1, "written": 3 * 2 + 1, "square roots": 2 + 2},
        {"forward": 2, "backward": 4, "written": 3 * 4, "square roots": 4},
    ],
    cnn: [
        {"forward": 1, "backward": 1, "written": 3 * 3 + 2 + 1, "square roots": 3 + 2},
        {"forward": 2, "backward": 4, "written": 3 * 5 + 2, "square roots": 3},
    ],
}


def expected(net: Any, replicas: int) -> dict[tuple[str, str], int]:
    return {
        (device_name(2 * replica + device), what): count
        for replica in range(replicas)
        for device, of_device in enumerate(EXPECTED[net])
        for what, count in of_device.items()
    }


@pytest.mark.slow  # fast: with options, below
def test_each_half_computes_on_its_device() -> None:
    found = executed(lambda: make_loop(cnn, halves(2), 2).fit(data(cnn, count=32), verbose=0))
    assert found == expected(cnn, 2)


@pytest.mark.slow
def test_with_options_of_a_step() -> None:
    """With the writes that they add on both devices: averages; the scale and its counters."""
    options: dict[str, Any] = {"loss_scale": "dynamic", "clip_norm": 1.0, "ema": 0.9}
    found = executed(lambda: make_loop(mlp, halves(), **options).fit(data(mlp, count=32), verbose=0))
    usual, written = expected(mlp, 1), [(device_name(i), "written") for i in range(2)]
    assert found == {**usual, **{of: usual[of] + n for of, n in zip(written, (2 + 3, 4), strict=True)}}


@pytest.mark.parametrize("what", ["evaluate", pytest.param("predict", marks=pytest.mark.slow)])
def test_without_training(what: str) -> None:
    def run() -> None:
        getattr(make_loop(mlp, halves()), what)(data(mlp, count=32))

    found = executed(run, within="" if what == "predict" else "while/body")
    assert [found[device_name(i), "forward"] for i in range(2)] == [1, 2]


@pytest.mark.slow
def test_loops_within_a_layer() -> None:
    """An LSTM has two products in a time step, and three in its backward pass, four if its inputs need a gradient."""
    found = executed(lambda: make_loop(lstm, halves()).fit(data(lstm, count=32), verbose=0))
    of_device = [found[device_name(i), "forward"] + found[device_name(i), "backward"] for i in range(2)]
    assert of_device == [2 + 3, 2 + 4 + 1 + 2]


@pytest.mark.slow
def test_the_check_of_the_first_batch() -> None:
    """It calls the model on a few rows and on two parts of them in one trace, on the first replica."""
    outside = r"^(?!.*while)"  # of the training
    found = executed(lambda: make_loop(mlp, halves(2), 2).fit(data(mlp, count=32), verbose=0), within=outside)
    assert [found[device_name(i), "forward"] for i in range(4)] == [3, 6, 0, 0]


@pytest.mark.parametrize(("rows", "width"), [(0, 4), (4, 0), (-1, 4), (4, 1.5)])
def test_a_table_has_rows_and_columns(rows: Any, width: Any, strategy_of: Any) -> None:
    with pytest.raises(mk.errors.StepError, match="must be a whole number from 1 on"):
        mk.parallel.PartitionedTable(strategy_of("one_device", 1), rows=rows, width=width)


@pytest.mark.cpu
@pytest.mark.parametrize("shards", [1, 3])
def test_a_table_refuses_ids_that_it_has_not(shards: int, strategy_of: Any) -> None:
    table = mk.parallel.PartitionedTable(strategy_of("one_device", 1), rows=10, width=2, shards=shards)
    before = tf.concat(table.variables, 0)
    table.add(tf.constant([[0, 9], [9, 4]]), tf.ones([2, 2, 2]))
    added = (tf.concat(table.variables, 0) - before).numpy()[:, 0]
    np.testing.assert_allclose(added, [1, 0, 0, 0, 1, 0, 0, 0, 0, 2], rtol=1e-6)
    for wrong in (-1, 10):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
            table.add(tf.constant([0, wrong]), tf.ones([2, 2]))


@pytest.mark.parametrize("shards", [0, 11, 2.5])
def test_a_table_has_at_most_a_shard_for_each_row(shards: Any, strategy_of: Any) -> None:
    with pytest.raises(mk.errors.StepError, match=f"from 1 to 10, found {shards}"):
        mk.parallel.PartitionedTable(strategy_of("one_device", 1), rows=10, width=2, shards=shards)
