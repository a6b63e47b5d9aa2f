"""Packing tensors into flat buckets and back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.train.reduce.packing import message_size, pack, unpack


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
    buckets = _assert_round_trip(_tensors((3, 4), (), (5,), (1, 1, 2)))
    assert [bucket.shape for bucket in buckets] == [(12 + 1 + 5 + 2,)]


def test_the_order_of_values_is_kept() -> None:
    buckets = pack([tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant(5.0), tf.constant([6.0])], 100)
    np.testing.assert_array_equal(buckets[0], [1, 2, 3, 4, 5, 6])


def test_a_tensor_without_elements_survives() -> None:
    _assert_round_trip(_tensors((2,), (0, 3), (1,)))


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 8) == []
    assert unpack([], [], 8) == []


def test_a_full_bucket_is_closed() -> None:
    tensors = _tensors((4,), (4,), (4,), (4,), (4,))
    buckets = _assert_round_trip(tensors, size=2 * 4 * 4)  # two tensors of four float32 each
    assert [bucket.shape[0] for bucket in buckets] == [8, 8, 4]
    assert all(bucket.shape[0] * 4 <= 32 for bucket in buckets)


def test_a_tensor_larger_than_a_bucket_has_its_own() -> None:
    buckets = _assert_round_trip(_tensors((2,), (100,), (2,)), size=16)
    assert [bucket.shape[0] for bucket in buckets] == [2, 100, 2]


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


def test_inside_a_graph_shapes_stay_static() -> None:
    @tf.function(autograph=False)
    def there_and_back(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        back = unpack(pack(tensors, 100), tensors, 100)
        assert [tensor.shape for tensor in back] == [tensor.shape for tensor in tensors]
        return back

    tensors = _tensors((2, 3), (4,))
    for want, got in zip(tensors, there_and_back(tensors), strict=True):
        np.testing.assert_array_equal(want, got)


def test_what_is_flat_and_alone_is_sent_as_it_is() -> None:
    """Each operation is traced and optimized on each replica, and one on a large tensor is a copy of it."""
    (tensor,) = _tensors((5,))
    (bucket,) = pack([tensor], 100)
    (back,) = unpack([bucket], [tensor], 100)
    assert bucket is back is tensor
