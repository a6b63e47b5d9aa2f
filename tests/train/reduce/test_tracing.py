"""Replicas are traced once; how tensors are packed into messages, and gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.reduction import message_size, pack, unpack
from mirrorkit.train.reduce.tracing import TraceOnce, outside_replica


def test_one_trace_for_each_shape_dtype_and_structure() -> None:
    traced: list[Any] = []

    def double(values: Any) -> Any:
        traced.append(tf.nest.map_structure(lambda value: value.shape, values))
        return tf.nest.map_structure(lambda value: 2 * value, values)

    function = TraceOnce(double)
    assert len(function._traces) == 0
    for _ in range(2):
        for count, values in enumerate(
            [tf.ones([2]), tf.ones([3]), tf.ones([2], tf.float64), {"a": tf.ones([2])}, [tf.ones([2])]], start=1
        ):
            found = function(values)
            tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a, 2 * b), found, values)
            assert len(function._traces) >= count
    assert len(function._traces) == len(traced) == 5


@pytest.mark.parametrize("replicas", [1, 4])
def test_all_replicas_share_one_trace(replicas: int, strategy_of: Any) -> None:
    function = TraceOnce(lambda value: value + 1)
    strategy = strategy_of("mirrored", replicas) if replicas > 1 else strategy_of("one_device", 1)

    def on_replica() -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return function(tf.cast(replica, tf.float32))

    values = strategy.experimental_local_results(tf.function(lambda: strategy.run(on_replica), autograph=False)())
    assert [float(value) for value in values] == [replica + 1 for replica in range(replicas)]
    assert len(function._traces) == 1


def _of_a_seed() -> Any:
    generator = keras.random.SeedGenerator(0)
    return lambda x: x * keras.random.uniform((), seed=generator)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (_of_a_seed, "seed_generator_state"),
        (lambda: lambda x: x * tf.random.uniform([]), "the operation RandomUniform"),
        (lambda: tf.function(lambda x: x + tf.random.normal([])), "the operation RandomStandardNormal"),
    ],
    ids=["seed", "random", "random within a function"],
)
def test_what_is_not_pure_is_refused_by_name(make: Any, found: str) -> None:
    function = TraceOnce(make())
    for _ in range(2):  # and not only the first time
        with pytest.raises(StepError, match=f"not among its own: .*{found}"):
            function(tf.constant(1.0))
    assert len(function._traces) == 0


def test_outside_of_a_replica_there_is_no_graph_device_or_strategy(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    seen: list[Any] = []

    def look() -> tuple[bool, Any, bool]:
        return tf.executing_eagerly(), tf.distribute.get_replica_context().num_replicas_in_sync, tf.inside_function()

    @tf.function(autograph=False)
    def run() -> Any:
        def on_replica() -> tf.Tensor:
            seen.append((look(), outside_replica(look)))
            return tf.constant(0)

        return strategy.run(on_replica)

    run()
    assert seen == [((False, 2, True), (True, 1, False))] * 2


def test_outside_of_a_replica_a_tape_goes_on() -> None:
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        assert outside_replica(lambda: int(tf.constant(5) + 1)) == 6
        y = y * x
    assert tape.gradient(y, x) == 27.0


# --- packing tensors into flat buckets and back


def _tensors(*shapes: tuple[int, ...], dtype: str = "float32") -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    return [tf.cast(tf.constant(rng.normal(size=shape)), dtype) for shape in shapes]


def _assert_round_trip(tensors: list[tf.Tensor], size: int = 2**20) -> list[tf.Tensor]:
    buckets = pack(tensors, size)
    back = unpack(buckets, tensors, size)
    assert len(back) == len(tensors)
    for want, got in zip(tensors, back, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_array_equal(tf.cast(got, tf.float64), tf.cast(want, tf.float64))
    return buckets


def test_small_tensors_travel_in_one_message() -> None:
    buckets = _assert_round_trip(_tensors((3, 4), (), (5,), (0, 3), (1, 1, 2)))
    assert [bucket.shape for bucket in buckets] == [(12 + 1 + 5 + 2,)]


@pytest.mark.parametrize(
    ("shapes", "size", "lengths"),
    [([(4,)] * 5, 2 * 4 * 4, [8, 8, 4]), ([(2,), (100,), (2,)], 16, [2, 100, 2])],  # sizes in bytes
    ids=["a full bucket is closed", "a large tensor has its own"],
)
def test_the_buckets(shapes: list[tuple[int, ...]], size: int, lengths: list[int]) -> None:
    assert [bucket.shape[0] for bucket in _assert_round_trip(_tensors(*shapes), size)] == lengths


def test_dtypes_are_never_mixed() -> None:
    tensors = [*_tensors((2,), (3,)), *_tensors((4,), dtype="bfloat16"), *_tensors((5,), dtype="float64")]
    buckets = _assert_round_trip(tensors)
    assert [(bucket.dtype, bucket.shape[0]) for bucket in buckets] == [
        (tf.float32, 5),
        (tf.bfloat16, 4),
        (tf.float64, 5),
    ]


@pytest.mark.parametrize(("device", "mib"), [("/job:worker/task:1/device:CPU:3", 8), ("/device:GPU:0", 32)])
def test_the_usual_bucket(device: str, mib: int) -> None:
    assert message_size(device) == mib * 2**20
    four = tf.zeros([2**20])  # MiB
    assert len(pack([four] * (mib // 4), message_size(device))) == 1
    assert len(pack([four] * (mib // 4 + 1), message_size(device))) == 2


def test_what_is_flat_and_alone_is_sent_as_it_is() -> None:
    """Each operation is traced and optimized on each replica, and one on a large tensor is a copy of it."""
    (tensor,) = _tensors((5,))
    (bucket,) = pack([tensor], 100)
    (back,) = unpack([bucket], [tensor], 100)
    assert bucket is back is tensor


# --- what `all_gather` takes, and where there is nothing to gather; the values: tests/multiworker/test_gathering.py


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (lambda: [tf.zeros([3]), 1.0], r"found shapes \[\(3,\), \(\)\]"),
        (lambda: [], r"found shapes \[\]"),
        (lambda: tf.zeros([2], tf.complex64), "complex64"),
    ],
    ids=["scalar", "nothing", "dtype"],
)
def test_what_cannot_be_gathered(rows: Any, match: str, strategy_of: Any) -> None:
    with pytest.raises(StepError, match=match):
        strategy_of("mirrored", 2).run(lambda: mk.train.all_gather(rows()))


def test_without_other_replicas_rows_are_all(strategy_of: Any) -> None:
    """On one device, by default, and in the scope, where models are built."""
    rows = {"a": np.arange(3.0), "b": [tf.constant([1, 2, 3])]}
    of_one = strategy_of("one_device", 1).run(lambda: mk.train.all_gather(rows))
    with strategy_of("mirrored", 2).scope():
        in_scope = mk.train.all_gather(rows)
    for found in (of_one, in_scope, mk.train.all_gather(rows)):
        tf.nest.map_structure(np.testing.assert_array_equal, found, rows)
        assert all(tf.is_tensor(part) for part in tf.nest.flatten(found))


def test_values_of_replicas_are_gathered_within_them(strategy_of: Any) -> None:
    """Eagerly too."""
    strategy = strategy_of("mirrored", 2)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.range(2 + context.replica_id_in_sync_group)
    )
    found = strategy.run(mk.train.all_gather, args=(values,))
    assert [part.numpy().tolist() for part in strategy.experimental_local_results(found)] == 2 * [[0, 1, 0, 1, 2]]


def test_tensors_of_other_numbers_of_rows_in_one_nest(strategy_of: Any) -> None:
    """Each has the gradient of its own rows, of unknown number: of squares of differences from all rows."""
    strategy = strategy_of("mirrored", 2)
    x = np.arange(10, dtype="float32")

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
    def gathered(few: Any, many: Any) -> Any:
        def on_replica() -> Any:
            second = tf.distribute.get_replica_context().replica_id_in_sync_group == 1
            own = [tf.boolean_mask(tf.constant(x)[: tf.size(part)], (part == 1) == second) for part in (few, many)]
            with tf.GradientTape() as tape:
                tape.watch(own)
                every = mk.train.all_gather(own)
                loss = tf.add_n([tf.reduce_sum((a[:, None] - b[None]) ** 2) for a, b in zip(own, every, strict=True)])
            return every, tape.gradient(loss, own)

        return strategy.run(on_replica)

    every, gradients = gathered([0, 0, 1], [0, 1, 1, 1, 1])
    for size, cut, whole, parts in zip((3, 5), (2, 1), every, gradients, strict=True):
        both = strategy.experimental_local_results
        assert both(whole)[1].numpy().tolist() == x[:size].tolist()
        expected = 4 * (size * x[:size] - x[:size].sum())
        np.testing.assert_allclose(both(parts)[0], expected[:cut], rtol=1e-5)
        np.testing.assert_allclose(both(parts)[1], expected[cut:], rtol=1e-5)
