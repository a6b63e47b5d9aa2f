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
