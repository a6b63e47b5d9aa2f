"""How the rows of a resident set are kept: the same bits back, in dtypes that a GPU can gather."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import IN_SPLITS
from tensorflow.python.framework import kernels

from mirrorkit.data.stored_array import GATHERED, StoredArray

# and what else `tf.gather` knows on a GPU
DTYPES = sorted({tf.as_dtype(name) for name in IN_SPLITS} | GATHERED, key=lambda dtype: dtype.name)


def _any_bits(dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """NaN, infinities and denormal numbers included."""
    octets = np.random.default_rng(0).integers(0, 256, (*shape, dtype.size), dtype=np.uint8)
    return octets[..., 0] > 127 if dtype == tf.bool else octets.view(dtype.as_numpy_dtype)[..., 0]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (5, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_rows_come_back_bit_for_bit(dtype: tf.DType, shape: tuple[int, ...]) -> None:
    array = _any_bits(dtype, (20, *shape))
    rows = StoredArray.of(array)
    kept = tf.constant(rows.pack(array))
    assert rows.on_host or kept.dtype in GATHERED
    for places in ([3, 19, 3, 0], []):
        taken = rows.take(kept, tf.constant(places, tf.int64))
        assert taken.dtype == dtype
        assert taken.shape == (len(places), *shape)
        assert taken.numpy().tobytes() == array[np.array(places, int)].tobytes()


def test_xla_compiles_them_all_and_their_shapes_are_known() -> None:
    arrays = [_any_bits(dtype, (20, 7)) for dtype in DTYPES]
    rows = [StoredArray.of(array) for array in arrays]
    shapes: list[Any] = []

    @tf.function(jit_compile=True)
    def take(kept: list[tf.Tensor], places: tf.Tensor) -> list[tf.Tensor]:
        taken = [one.take(tensor, places) for one, tensor in zip(rows, kept, strict=True)]
        shapes.extend(tensor.shape.as_list() for tensor in taken)
        return taken

    kept = [tf.constant(one.pack(array)) for one, array in zip(rows, arrays, strict=True)]
    for tensor, array in zip(take(kept, tf.constant([4, 2, 4], tf.int64)), arrays, strict=True):
        assert tensor.numpy().tobytes() == array[[4, 2, 4]].tobytes()
    assert shapes == [[3, 7]] * len(DTYPES)


def _on_gpus(operation: str, attribute: str) -> set[tf.DType]:
    """The dtypes for which the operation has a GPU kernel that takes them from the device's memory."""
    found: set[tf.DType] = set()
    for kernel in kernels.get_registered_kernels_for_op(operation).kernel:
        if kernel.device_type == "GPU":
            allowed = [c.allowed_values.list.type for c in kernel.constraint if c.name == attribute]
            on_host = {"params", "input", "tensor"} & set(kernel.host_memory_arg)
            found |= set() if on_host else {tf.as_dtype(one) for types in allowed for one in types}
    return found


@pytest.mark.skipif(not _on_gpus("AddV2", "T"), reason="this TensorFlow was built without GPU kernels")
def test_what_is_kept_as_it_is_has_a_gpu_kernel_and_nothing_else_has_one() -> None:
    gathered = _on_gpus("GatherV2", "Tparams")
    assert gathered >= GATHERED
    for dtype in {tf.as_dtype(name) for name in IN_SPLITS} - GATHERED - {tf.int32}:
        assert dtype not in gathered  # or it could be kept as it is
        assert dtype in _on_gpus("Reshape", "T")
        assert dtype in _on_gpus("StridedSlice", "T")


def test_words_take_no_more_memory_than_rows_of_whole_words_need() -> None:
    for size, words in ((784, 98), (3072, 384), (7, 1), (9, 2)):
        array = np.zeros((5, size), np.uint8)
        assert StoredArray.of(array).pack(array).shape == (5, words)
