"""Each augmentation, pixel by pixel against what its description says."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit.data import augment
from mirrorkit.errors import RecipeError

IMAGES = np.random.default_rng(0).integers(1, 256, (40, 8, 10, 3), dtype=np.uint8)
SEED = tf.constant([1, 2], tf.int64)


def run(augmentation, images=IMAGES, seed=SEED):
    out = tf.function(augmentation)(tf.constant(images), seed)
    return out.numpy()


def _flipped(images):  # about half of them
    mirrored = tf.random.stateless_uniform([len(images), 1], SEED).numpy() < 0.5
    return np.where(mirrored[:, :, None, None], images[:, :, ::-1], images)


def _cropped(images, mode="constant"):
    offsets = tf.random.stateless_uniform([2, len(images), 1], SEED, 0, 5, tf.int32).numpy()[:, :, 0]
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), mode=mode)
    windows = [image[i : i + 8, j : j + 10] for image, i, j in zip(padded, *offsets, strict=True)]
    return np.stack(windows) if windows else images


def _covered(images):
    first = (tf.random.stateless_uniform([2, len(images), 1], SEED).numpy() * [[[8]], [[10]]]).astype(int) - 2
    rows, columns = ((first[i] <= np.arange(n)) & (np.arange(n) < first[i] + 4) for i, n in ((0, 8), (1, 10)))
    return np.where((rows[:, :, None] & columns[:, None])[..., None], images.dtype.type(1), images)


@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        (23, "uint8"),
        # the other ways in which pixels move: as floats of 2 or 4 bytes, or their bits
        *(pytest.param(23, dtype, marks=pytest.mark.slow) for dtype in ("int64", "bfloat16", "bool", "float16")),
        (0, "uint8"),
    ],
)
def test_the_same_seed_draws_the_same_numbers_whatever_the_dtype_and_no_bit_is_lost(count, dtype):
    """NaN, infinities, denormal and the largest numbers included."""
    tensor = tf.as_dtype(dtype)
    octets = np.random.default_rng(0).integers(0, 256, (count, 8, 10, 3, tensor.size), dtype=np.uint8)
    images = octets[..., 0] > 127 if dtype == "bool" else octets.view(tensor.as_numpy_dtype)[..., 0]
    for one, expected in (
        (augment.flip(), _flipped(images)),
        (augment.pad_and_crop(2), _cropped(images)),
        (augment.pad_and_crop(2, mode="reflect"), _cropped(images, "reflect")),
        (augment.pad_and_crop(2, mode="symmetric"), _cropped(images, "symmetric")),
        (augment.cutout(4, fill=1), _covered(images)),
    ):
        out = run(one, images)
        assert out.dtype == images.dtype
        assert out.shape == images.shape
        assert out.tobytes() == expected.tobytes()


def test_normalize_is_float32_per_channel():
    mean, std = [10.0, 20.0, 30.0], [2.0, 4.0, 8.0]
    out = run(augment.normalize(mean, std))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, (IMAGES.astype(np.float64) - mean) / std, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(run(augment.normalize(128, 64)), (IMAGES - 128.0) / 64, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("one", [augment.flip(), augment.pad_and_crop(2), augment.cutout(4)])
def test_another_seed_draws_other_numbers_and_static_shapes_survive(one):
    assert (run(one) != run(one, seed=tf.constant([1, 3], tf.int64))).any()
    spec = tf.TensorSpec([None, 8, 10, 3], tf.uint8)
    traced = tf.function(one).get_concrete_function(spec, tf.TensorSpec([2], tf.int64))
    assert traced.output_shapes.as_list() == [None, 8, 10, 3]


def test_each_place_in_the_list_has_numbers_of_its_own():
    noise = lambda images, seed: images + tf.random.stateless_uniform([], seed)  # noqa: E731
    zeros = tf.zeros([1, 1, 1, 1])
    one = float(augment.apply([noise], zeros, seed=0, epoch=0, step=0)[0, 0, 0, 0])
    two = float(augment.apply([noise, noise], zeros, seed=0, epoch=0, step=0)[0, 0, 0, 0])
    assert two != pytest.approx(2 * one)
    others = [{"seed": s, "epoch": e, "step": t} for s, e, t in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    drawn = {one, *(float(augment.apply([noise], zeros, **at)[0, 0, 0, 0]) for at in others)}
    assert len(drawn) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: augment.pad_and_crop(0),
        lambda: augment.pad_and_crop(2, mode="wrap"),
        lambda: augment.cutout(0),
        lambda: augment.normalize(0, [1, 0, 1]),
    ],
)
def test_bad_arguments_are_refused(make):
    with pytest.raises(RecipeError, match="was asked for"):
        make()


def test_a_fill_that_pixels_cannot_hold_is_refused():
    assert run(augment.cutout(40, fill=255)).min() == 255
    assert run(augment.cutout(40, fill=-1), IMAGES.astype("float32")).max() == -1
    for fill in (-1, 256, float("nan")):
        with pytest.raises(RecipeError, match=rf"fill={fill}.*uint8"):
            augment.cutout(4, fill=fill)(tf.constant(IMAGES), SEED)
