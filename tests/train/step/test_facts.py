"""What tracing finds out about a model; joined weights; where a recurrent layer's loop runs."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from executed import operations
from step_helpers import cut, numbers_of, train
from training_helpers import sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.optim import packed
from mirrorkit.train.reduce.sparse_gradient import SparseGradient
from mirrorkit.train.step import facts as facts_
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.totals.totals import FIXED

L = keras.layers


def _net() -> Any:
    model = sequential((4,), L.Dense(3), L.BatchNormalization(), L.Dropout(0.5), L.Dense(3), L.Dense(1))
    model.layers[3].trainable = False
    return model


def _batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return rng.normal(size=(size, 4)).astype("float32"), rng.normal(size=(size, 1)).astype("float32")


def _compute(loop: Any, batch: Any, *, static: bool = True) -> Any:
    """Run the step's `compute` in a trace of its own, on rows whose number the trace knows or does not."""
    specs = [tf.TensorSpec(part.shape if static else [None, *part.shape[1:]], part.dtype) for part in batch]
    run = tf.function(
        lambda *batch: loop.strategy.run(loop.step.compute, args=(batch,)), input_signature=specs, autograph=False
    )
    return run(*batch)


def _functions(loop: Any) -> Any:
    return loop.step.for_loop(loop.strategy).functions


@pytest.fixture
def make(make_loop: Any) -> Callable[..., Any]:
    """`make(net, replicas=1, **Step's options)`: a loop whose step is built."""

    def make(net: Any = _net, replicas: int = 1, **options: Any) -> Any:
        return make_loop(("mirrored", replicas) if replicas > 1 else ("one_device", 1), net, **options)

    return make


def test_nothing_is_known_before_a_batch_was_seen(make: Any) -> None:
    loop = make()
    step = loop.step.for_loop(loop.strategy)
    for ask in (step.totals_size, lambda: step.modes, lambda: loop.step.logs(tf.zeros([5]))):
        with pytest.raises(StepError, match="seen a batch"):
            ask()
    step.prepare((tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])))
    assert step.totals_size() == FIXED + 2
    assert step.modes == {"loss": "min"}


def test_update_before_compute_says_what_to_call(make: Any) -> None:
    loop, other = make(), make()
    sums = _compute(loop, _batch(6))
    with pytest.raises(StepError, match=r"before step\.update"):
        other.step.update(other.strategy, sums)
    _compute(other, _batch(6))
    assert other.step.update(other.strategy, sums)["loss"] == loop.step.update(loop.strategy, sums)["loss"]


def test_the_first_replica_has_nothing(make: Any) -> None:
    """Each replica is traced for itself, the first one first; what it lacks it must find out all the same."""
    alone, loop = make(), make(replicas=2)
    rows = _batch(6)
    share = [tuple(part[:0] for part in rows), rows]

    def values(index: int) -> Any:
        return loop.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(share[context.replica_id_in_sync_group][index])
        )

    train = tf.function(
        lambda *batch: loop.step.update(loop.strategy, loop.strategy.run(loop.step.compute, args=(batch,))),
        autograph=False,
    )
    logs = train(values(0), values(1))
    expected = alone.step.update(alone.strategy, _compute(alone, rows))
    assert np.isfinite(logs["loss"])
    for kept in (0, 1, -1):  # Dropout draws by replica, so only what is before it is the same; the rest is finite
        assert np.isfinite(loop.step.model.get_weights()[kept]).all()
    mean = loop.step.model.layers[1].moving_mean.value.numpy()
    np.testing.assert_allclose(mean, alone.step.model.layers[1].moving_mean.value.numpy(), rtol=1e-5)
    assert set(logs) == set(expected)


def test_a_trace_that_finds_something_else_is_refused(make: Any) -> None:
    class Fickle(L.Dense):
        def call(self, x: Any, training: bool | None = None) -> Any:
            return tf.stop_gradient(super().call(x)) if x.shape[0] == 2 else super().call(x)

    loop = make(lambda: sequential((4,), Fickle(3), L.Dense(1)))
    _compute(loop, _batch(6))
    facts = _functions(loop).facts
    with pytest.raises(StepError, match="other weights"):
        _compute(loop, _batch(2))
    assert _functions(loop).facts is facts


@pytest.mark.parametrize(("replicas", "always"), [(1, False), (2, False), (2, True), (3, False)])
def test_tables_are_sent_by_rows_where_that_is_less(replicas: int, always: bool, strategy_of: Any) -> None:
    """A batch of 1024 looks up one row of each; the message is below 1 MB, where dense gradients have 154 MB."""
    shapes, width = [(1_000_000, 32), (200_000, 32), (40, 32), (32, 1)], 32
    share = -(-1024 // replicas)
    weights = [SimpleNamespace(shape=shape, path="table") for shape in shapes]
    strategy = strategy_of("mirrored", replicas)

    def sent() -> Any:
        rows = SparseGradient(tf.zeros([share], tf.int64), tf.zeros([share, width]))
        sums = ShardSums([[rows, rows, rows, tf.zeros(shapes[-1])]], [], [None], tf.zeros([3]))
        return facts_.to_send(sums, sums, weights, always=always)["gradients"]

    (first, *_) = strategy.experimental_local_results(strategy.run(sent))
    by_rows = [replicas, share, width + 2]
    assert [one.shape.as_list() for one in first] == [by_rows, by_rows, by_rows if always else [40, 32], [32, 1]]
    assert sum(int(tf.size(one)) * 4 for one in first) < 1_000_000


# --- the update of a step joins small weights: the same bits as without, with fewer operations


def _small_weights() -> Any:
    frozen = L.Dense(4, trainable=False)
    return sequential((4,), frozen, L.Dense(5, activation="tanh"), L.LayerNormalization(), L.Dense(3), L.Dense(1))


def _adamw() -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 10)
    return keras.optimizers.AdamW(schedule, weight_decay=0.1)


def _trained(make_loop: Any, numbers: Any) -> tuple[Any, list[Any]]:
    loop = make_loop(("mirrored", 2), _small_weights, _adamw, clip_value=0.01, ema=0.7)
    train(loop, cut(*numbers, sizes=[20, 9, 20]))
    return loop, numbers_of(loop.step.variables)


def _operations(loop: Any) -> int:
    (trace,) = loop.step.for_loop(loop.strategy).functions._new_values._traces.values()
    return sum(op.type not in ("Placeholder", "Const", "Identity") for op in trace.graph.get_operations())


def test_same_bits_with_fewer_operations(make_loop: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, found = _trained(make_loop, numbers)
    monkeypatch.setattr(packed, "_SMALL", -1)
    apart, expected = _trained(make_loop, numbers)
    np.testing.assert_equal(found, expected)
    assert _operations(joined) < 0.7 * _operations(apart)
    _assert_nothing_is_left_behind(joined)


def _assert_nothing_is_left_behind(loop: Any) -> None:
    """The optimizer's twin needs variables while the update is traced, and only then."""
    (trace,) = loop.step.for_loop(loop.strategy).functions._new_values._traces.values()
    assert not trace.variables
    assert not [v for v in loop.step.optimizer.variables if v.name == "joined"]
    assert not [o for o in gc.get_objects() if isinstance(o, keras.Variable) and o.name == "joined"]


# --- A recurrent layer's loop over time runs on its replica's device: copies at each time step would cost more than it


TIME = 6


def one_output() -> keras.Model:
    return keras.Sequential([keras.Input((TIME, 3)), L.SimpleRNN(4), L.Dense(1)])


def masked_output() -> keras.Model:
    """Two losses with divisors of their own: one for each example, and one for each step that no mask leaves out."""
    x = keras.Input((TIME, 3))
    steps = L.GRU(4, return_sequences=True)(L.Masking()(x))
    return keras.Model(x, [L.Dense(1, name="each")(steps), L.Dense(1, name="all")(L.SimpleRNN(4)(steps))])


def _steps(net: Any) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, TIME, 3)).astype("float32")
    y = rng.normal(size=(8, 1)).astype("float32")
    each = rng.normal(size=(8, TIME, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y if net is one_output else (each, y))).batch(8)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("net", [one_output, pytest.param(masked_output, marks=pytest.mark.slow)])
def test_a_replica_copies_nothing_from_another_at_each_time_step(make_loop: Any, net: Any) -> None:
    def run() -> None:
        loss = "mse" if net is one_output else ["mse", "mse"]
        make_loop(("mirrored", 2), net, loss=loss).fit(_steps(net), verbose=0)

    within = [found for found in operations(run) if re.search(r"replica_1.*(gru|rnn)[^/]*/while", found[1])]
    assert {op for _, _, op in within} >= {"NextIteration", "TensorListPushBack", "TensorListPopBack"}
    assert {device for device, *_ in within} == {"CPU:1"}
    assert not [name for _, name, op in within if op in ("_Recv", "_Send")]
