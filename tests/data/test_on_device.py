"""Resident data: the batches of `mk.data.batches`, gathered on the devices, and how their rows are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import IN_SPLITS
from tensorflow.python.framework import kernels

import mirrorkit as mk
from mirrorkit.data.stored_array import GATHERED, StoredArray
from mirrorkit.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


@pytest.fixture(scope="module")
def split() -> Any:
    rng = np.random.default_rng(0)
    return mk.data.arrays(rng.integers(0, 256, (58, 6, 6, 1), dtype=np.uint8), rng.integers(0, 5, 58))


def _seen(strategy: Any, recipe: Any, dtype: tf.DType = tf.int64) -> list[Any]:
    """What the replicas together get of each batch of the second epoch, in their order; `dtype` is the index's."""
    from mirrorkit.train.input.input import Input

    epoch = Input(strategy, recipe).epoch(1)
    batches = []

    @tf.function
    def rows(source: Any, index: tf.Tensor, size: int) -> Any:
        batch = epoch.batch(source, index, size)
        return strategy.run(batch.rows), batch.examples()

    for index in range(recipe.steps_per_epoch):
        parts, examples = rows(epoch.source, tf.constant(index, dtype), epoch.size_of(index))
        parts = strategy.experimental_local_results(parts)
        batches.append(tf.nest.map_structure(lambda *of_replicas: np.concatenate(of_replicas), *parts))
        assert {len(leaf) for leaf in tf.nest.flatten(batches[-1])} == {int(examples)}
    return batches


@pytest.fixture(scope="module")
def many_dtypes() -> Any:
    """Rows of 7 values of some dtypes, and of one number; test_on_device.py has all dtypes and other shapes."""
    rng = np.random.default_rng(0)
    images = {dtype: rng.integers(0, 200, (58, 7)).astype(dtype) for dtype in ("bool", "uint8", "int32", "float64")}
    images["number"] = rng.integers(0, 200, 58).astype("uint8")
    return mk.data.arrays(images, {"ids": rng.integers(0, 5, (58, 3), np.int32), "class": rng.integers(0, 5, 58)})


@pytest.mark.parametrize(("replicas", "dtype"), [(4, tf.int32), (2, tf.int64)])
def test_arrays_come_as_they_are(replicas: int, dtype: tf.DType, strategy_of: Any, many_dtypes: Any) -> None:
    # the last batch has 6 examples: of four replicas one gets none
    recipe = mk.data.resident(many_dtypes, global_batch_size=13, shuffle=True, seed=1)
    expected = [tf.nest.map_structure(lambda tensor: tensor.numpy(), batch) for batch in recipe.dataset(epoch=1)]
    for got, want in zip(_seen(strategy_of("mirrored", replicas), recipe, dtype), expected, strict=True):
        tf.nest.assert_same_structure(got, want)
        for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_each_part_lies_where_it_is_used(strategy_of: Any, many_dtypes: Any) -> None:
    from mirrorkit.train.input.input import Input

    strategy = strategy_of("mirrored", 2)
    stream = Input(strategy, mk.data.resident(many_dtypes, global_batch_size=12)).epoch(0)
    assert stream.source["order"].device.endswith("/device:CPU:0")
    assert stream.source["epoch"].device.endswith("/device:CPU:0")
    for arrays, device in zip(stream.source["arrays"], strategy.extended.worker_devices, strict=True):
        for array in tf.nest.flatten(arrays):
            assert array.device.endswith("/device:CPU:0" if array.dtype == tf.int32 else device)
    one, other = (arrays[1]["ids"] for arrays in stream.source["arrays"])
    assert one is other  # the host needs no copy for each replica


def test_the_set_is_no_larger_than_in_the_split(strategy_of: Any, split: Any) -> None:
    (images, labels), *_ = mk.data.resident(split, global_batch_size=12).place(strategy_of("mirrored", 2))
    assert images.dtype == labels.dtype == tf.int64
    assert images.shape == (58, 5)  # 36 bytes, in words of 8


def test_augmentation_is_that_of_streamed_batches_and_other_on_each_replica(strategy_of: Any) -> None:
    images = np.tile(np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1), (16, 1, 1, 1))
    split = mk.data.arrays(images, np.zeros(16, int))
    options: dict[str, Any] = {"global_batch_size": 16, "augment": [mk.data.augment.pad_and_crop(4)]}
    recipe = mk.data.resident(split, **options)
    ((expected, _),) = mk.data.batches(split, **options).dataset(epoch=1)
    ((alone, _),) = _seen(strategy_of("one_device", 1), recipe)
    np.testing.assert_array_equal(alone, expected)
    ((first, _),), ((again, _),) = (_seen(strategy_of("mirrored", 2), recipe) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:8], first[8:])


def test_a_set_that_does_not_fit_says_how_much_it_needs(
    strategy_of: Any, split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    recipe = mk.data.resident(split, global_batch_size=12)
    monkeypatch.setattr(tf, "constant", full)
    with pytest.raises(DataError, match=r"MiB on .*CPU:0.*OOM"):
        recipe.place(strategy_of("mirrored", 2))


# --- how the rows of a resident set are kept: the same bits back, in dtypes that a GPU can gather


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
