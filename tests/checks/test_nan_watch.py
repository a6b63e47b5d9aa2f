"""NanWatch: the error about a loss that is not finite says which layer made it, and from what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.checks import nan_watch
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers

EXAMPLES, BATCH = 60, 6
X = np.random.default_rng(0).uniform(1, 2, (EXAMPLES, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def net() -> Any:
    """A layer that fails on negative numbers, before and behind others."""
    return keras.Sequential([keras.Input((4,)), L.Rescaling(1.0), L.Lambda(tf.math.log, name="log"), L.Dense(1)])


def make_loop(strategy: Any, net: Callable[[], Any] = net, steps_per_call: int = 4, **options: Any) -> mk.train.Loop:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = net(), keras.optimizers.SGD(0.001, momentum=0.9)
    return mk.train.Loop(
        strategy, mk.train.Step(model, optimizer, loss="mse", **options), steps_per_call=steps_per_call
    )


def recipe(row: int, value: float, **options: Any) -> mk.data.Batches:
    """Ten batches of six; a number of this row is a bad one."""
    bad = X.copy()
    bad[row, 2] = value
    return mk.data.batches(mk.data.arrays(bad, Y), global_batch_size=BATCH, **options)


def failed(loop: mk.train.Loop, data: Any, match: str, *, every: int = 200, **fit: Any) -> NonFiniteLossError:
    """Train with a watch until it says this; return the error."""
    with pytest.raises(NonFiniteLossError, match=match) as caught:
        loop.fit(data, verbose=0, callbacks=[mk.checks.NanWatch(every=every)], **fit)
    return caught.value


def weights(loop: mk.train.Loop) -> list[np.ndarray]:
    return [v.numpy() for v in loop.step.variables]


def assert_weights_equal(one: mk.train.Loop, other: mk.train.Loop) -> None:
    np.testing.assert_equal(weights(one), weights(other))


ONE, TWO = ("one_device", 1), ("mirrored", 2)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "every"), [(ONE, 200), (TWO, 1)], ids=str)
def test_the_layer_is_named_and_the_weights_are_those_before(where: Any, every: int, strategy_of: Any) -> None:
    data, loop = recipe(40, -1), make_loop(strategy_of(*where))  # in batch 6 of 0 to 9
    error = failed(loop, data, r"training step 6 \(epoch 0, batch 6 of it", every=every)
    assert (error.step, error.epoch, error.batch) == (6, 0, 6)
    shard = 1 if where[1] == 2 else 0
    for part in (
        "The first number that is not finite comes in batch 6: output of layer 'log' (Lambda): 1 NaN and 0 infin",
        f"its input is between -1 and {X[39 if shard else 36 : 42].max():.4g} (shard {shard} of the batch).",
    ):
        assert part in str(error)
    sound = make_loop(strategy_of(*where))
    sound.fit(data, steps_per_epoch=6, verbose=0)
    assert_weights_equal(loop, sound)


def test_a_worker_numbers_its_shards_after_those_of_the_workers_before(
    strategy_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nan_watch, "worker_index", lambda strategy: 1)
    failed(make_loop(strategy_of(*TWO)), recipe(40, -1), "shard 3 of")  # the second of this one's two


def slope_at_zero() -> Any:
    """Finite for zeros, but not its slope: the weights become NaN, and the loss of the next update with them."""
    layers = [L.Dense(4, use_bias=False, kernel_initializer="identity", name="first"), L.Lambda(tf.sqrt, name="root")]
    return keras.Sequential([keras.Input((4,)), *layers, L.Dense(1)])


def test_a_gradient_that_was_not_finite_in_the_update_before(strategy_of: Any) -> None:
    zeros = X.copy()
    zeros[20] = 0  # in batch 3
    data = mk.data.batches(mk.data.arrays(zeros, Y), global_batch_size=BATCH)
    loop = make_loop(strategy_of(*TWO), slope_at_zero, steps_per_call=5)  # both updates in one call
    error = failed(loop, data, r"is not finite comes in batch 3: gradient .*layer 'root' \(Lambda\) passes back")
    assert error.batch == 4


def test_accumulated_batches(strategy_of: Any) -> None:
    loop = make_loop(strategy_of(*TWO), accumulate=4)  # it is in the third of the update's four batches
    failed(loop, recipe(40, -1), r"comes in batch 4: output of layer 'log' .*shard 5 of", every=3)


def test_the_order_is_that_of_the_epoch(strategy_of: Any) -> None:
    data = recipe(40, -1, shuffle=True)
    bad = [bool((x.numpy() < 0).any()) for x, _ in data.dataset(epoch=1)].index(True)
    failed(make_loop(strategy_of(*TWO)), data, f"comes in batch {bad}: output of", initial_epoch=1, epochs=2)


def test_a_dataset_that_gives_other_batches_the_second_time(strategy_of: Any) -> None:
    runs = []

    def examples() -> Any:
        runs.append(1)
        for i in range(EXAMPLES):
            yield (-X[i] if i == 40 and len(runs) == 1 else X[i]), Y[i]

    spec = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    data = tf.data.Dataset.from_generator(examples, output_signature=spec).batch(BATCH)
    failed(make_loop(strategy_of(*TWO)), data, "step 6.*all numbers here stayed finite")


def batches_of(x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(0, EXAMPLES, BATCH):
        yield x[i : i + BATCH], Y[i : i + BATCH]


def test_a_generator_cannot_be_read_again(strategy_of: Any) -> None:
    bad = X.copy()
    bad[25, 2] = np.nan
    loop = make_loop(strategy_of(*ONE), hiding_net, steps_per_call=2)
    match = r"in one of the training steps 4 to 5 .*the data ended before batch 4\. A generator can"
    assert failed(loop, batches_of(bad), match, every=2).batch == 5


def hiding_net() -> Any:
    """Makes 0 of NaN behind its first layer, as ReLU does on some processors: the loss never shows it."""
    hide = L.Lambda(lambda x: tf.where(tf.math.is_nan(x), 0.0, x))
    return keras.Sequential([keras.Input((4,)), L.Dense(8, name="first"), hide, L.Dense(1)])


def test_weights_that_are_nan_while_the_loss_is_not(strategy_of: Any) -> None:
    data, loop = recipe(25, np.nan), make_loop(strategy_of(*TWO), hiding_net)  # in batch 4
    error = failed(loop, data, "though the loss stayed finite", every=3, epochs=2)
    assert (error.step, error.epoch, error.batch) == (4, 0, 4)
    assert "comes in batch 4: input of the batch: 1 NaN and 0 infinite of 12 numbers" in str(error)
    assert all(np.isfinite(value).all() for value in weights(loop))
    loop.step.model.set_weights([np.full_like(weight, np.nan) for weight in loop.step.model.get_weights()])
    with pytest.raises(StepError, match=r"NaN before training .*first/kernel"):
        loop.fit(data, verbose=0, callbacks=[mk.checks.NanWatch()])


@pytest.mark.slow
def test_while_all_is_well_it_only_keeps_a_copy(strategy_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nan_watch, "find_in_shards", lambda *args, **options: pytest.fail("looked without a reason"))
    data = recipe(40, 1.5)
    loop, sound = make_loop(strategy_of("mirrored", 2)), make_loop(strategy_of("mirrored", 2))
    watch, copied_at = mk.checks.NanWatch(every=5), []

    class Spy(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            copied_at.append(watch._batch)

    loop.fit(data, epochs=2, verbose=0, callbacks=[watch, Spy()])
    sound.fit(data, epochs=2, verbose=0)
    assert copied_at == [0, 0, 8] * 2  # calls of 4, 4 and 2 steps
    assert watch._copy is None
    assert_weights_equal(loop, sound)


def test_keras_fit_cannot_go_back() -> None:
    model = net()
    model.compile("sgd", "mse")
    with pytest.raises(StepError, match=r"TerminateOnNaN.*find_non_finite"):
        model.fit(X, Y, verbose=0, callbacks=[mk.checks.NanWatch()])
