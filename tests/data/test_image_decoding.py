"""Decoding and resizing: what Keras makes of the same files, rounded."""

from __future__ import annotations

import base64
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import collect, write_images

from mirrorkit import data
from mirrorkit._keras import keras

# 3 x 2 pixels, red, then green
GIF = base64.b64decode(
    "R0lGODdhAwACAIEAAP8AAAAAAAAAAAAAACwAAAAAAwACAAAIBgABCBwYEAAh+QQBAAABACwAAAAAAwACAIEA/wAAAAAAAAAAAAAIBgABCBwYEAA7"
)
CASES = [
    *(("bilinear", "stretched"), ("bilinear", "pad_to_aspect_ratio"), ("nearest", "crop_to_aspect_ratio")),
    *(
        pytest.param(name, "stretched", marks=pytest.mark.slow)
        for name in ("area", "bicubic", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
    ),
]


def bmp(image: np.ndarray) -> bytes:
    """A BMP file of 24 bits a pixel: rows from below, blue first, filled up to four bytes."""
    height, width, _ = image.shape
    rows = np.pad(image[::-1, :, ::-1].reshape(height, -1), [(0, 0), (0, -3 * width % 4)]).tobytes()
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54) + header + rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of several sizes and kinds, among them one of 12 x 9."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("images")
    sizes = [(12, 9), (9, 12), (30, 7), (7, 30), (1, 1), (45, 61)]
    for i, size in enumerate(sizes):
        image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        write_images(folder, [image, image[..., :1]], [f"a/{i}.png", f"a/gray{i}.png"])
        (folder / f"a/{i}.jpg").write_bytes(tf.io.encode_jpeg(image).numpy())
    (folder / "a/z.bmp").write_bytes(bmp(image))
    (folder / "a/z.gif").write_bytes(GIF)
    return folder


@pytest.mark.parametrize(("interpolation", "how"), CASES)
def test_images_are_those_of_keras_rounded(folder, interpolation, how):
    options = {"image_size": (12, 9), "interpolation": interpolation, **({} if how == "stretched" else {how: True})}
    recipe = data.image_folder(folder, global_batch_size=8, **options)
    own = np.concatenate([x for x, _ in collect(recipe.dataset())])
    made = keras.utils.image_dataset_from_directory(folder, shuffle=False, verbose=False, **options)
    theirs = np.concatenate([x for x, _ in collect(made)])
    assert own.dtype == np.uint8
    np.testing.assert_array_equal(own, np.clip(np.round(theirs), 0, 255))


@pytest.mark.parametrize(("color_mode", "channels"), [("grayscale", 1), ("rgb", 3), ("rgba", 4)])
def test_channels(folder, color_mode, channels):
    paths = sorted(str(path) for path in folder.glob("a/*.png"))
    recipe = data.image_folder(paths, labels=None, image_size=(12, 9), color_mode=color_mode, global_batch_size=3)
    (x,) = next(iter(recipe.dataset()))
    assert x.shape == (3, 12, 9, channels)
    whole = tf.io.decode_image(tf.io.read_file(paths[0]), channels=channels)
    np.testing.assert_array_equal(x[0], whole, "an image of the size stays as it is")


def test_every_kind_of_file_bit_for_bit(tmp_path):
    image = np.random.default_rng(1).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    deep = image.astype(np.uint16) * 257
    red = np.broadcast_to(np.uint8([255, 0, 0]), (2, 3, 3))
    jpeg = tf.io.encode_jpeg(image).numpy()
    kinds = {
        "png": (tf.io.encode_png(image).numpy(), image),
        "deep.png": (tf.io.encode_png(deep).numpy(), image),
        "jpg": (jpeg, tf.io.decode_jpeg(jpeg)),
        "bmp": (bmp(image), image),
        "gif": (GIF, red),  # the first image of two
        "named.png": (bmp(image), image),  # the content counts
    }
    paths = [tmp_path / f"x.{kind}" for kind in kinds]
    for path, (content, _) in zip(paths, kinds.values(), strict=True):
        path.write_bytes(content)
    recipe = data.image_folder(paths, labels=None, image_size=(2, 3), global_batch_size=6)
    (x,) = next(iter(recipe.dataset()))
    np.testing.assert_array_equal(x, [wanted for _, wanted in kinds.values()])


def write_jpegs(folder, sizes, **options):
    """JPEG files of these sizes in the folder of one class, in their order."""
    rng = np.random.default_rng(2)
    (folder / "a").mkdir(parents=True)
    for number, size in enumerate(sizes):
        smooth = tf.image.resize(rng.integers(0, 256, (4, 4, 3)), size, "bicubic")
        content = tf.io.encode_jpeg(tf.saturate_cast(smooth, tf.uint8)).numpy()
        (folder / "a" / f"{number}.jpg").write_bytes(content)
    return sorted(folder.glob("a/*"))


def reduced(path, ratio, channels=3):
    return tf.io.decode_jpeg(tf.io.read_file(str(path)), channels, ratio)


@pytest.mark.parametrize("most", [2, 8])
def test_a_jpeg_is_decoded_at_the_largest_ratio_at_which_it_is_large_enough(tmp_path, most):
    """At a ratio a height or width is divided and rounded up."""
    sizes = {(96, 80): 8, (95, 79): 8, (89, 73): 8, (88, 200): 4, (47, 79): 4, (24, 20): 2, (23, 20): 2, (22, 90): 1}
    paths = write_jpegs(tmp_path, [*sizes, (5, 3)])
    recipe = data.image_folder(tmp_path, image_size=(12, 10), global_batch_size=9, max_jpeg_ratio=most)
    ((x, _),) = collect(recipe.dataset())
    for image, path, largest in zip(x, paths, [*sizes.values(), 1], strict=True):
        wanted = tf.image.resize(reduced(path, min(most, largest)), (12, 10))
        np.testing.assert_array_equal(image, np.round(wanted), f"{path.name}, {largest}")


def test_a_reduced_jpeg_is_resized_as_a_file_of_its_size_would_be(tmp_path):
    (path,) = write_jpegs(tmp_path, [(96, 120)])
    write_images(tmp_path, [reduced(path, 4, channels=1)], ["small.png"])
    options = {"image_size": (20, 22), "global_batch_size": 1, "labels": None, "color_mode": "grayscale"}
    options["pad_to_aspect_ratio"] = True
    ((x,),) = collect(data.image_folder([path], max_jpeg_ratio=8, **options).dataset())
    ((wanted,),) = collect(data.image_folder([tmp_path / "small.png"], **options).dataset())
    np.testing.assert_array_equal(x, wanted)


def test_other_files_are_decoded_whole(folder, tmp_path):
    """By their content: one that is named .png may hold a JPEG image."""
    place = shutil.copytree(folder, tmp_path / "images")
    (place / "a/zz.png").write_bytes((place / "a/5.jpg").read_bytes())
    options = {"image_size": (5, 6), "global_batch_size": 99}
    one, other = (data.image_folder(place, **options, max_jpeg_ratio=ratio) for ratio in (1, 8))
    ((x, _),), ((small, _),) = collect(one.dataset()), collect(other.dataset())
    changed = [path for path, same in zip(one.file_paths, (x == small).all((1, 2, 3)), strict=True) if not same]
    assert changed == [str(place / name) for name in ("a/1.jpg", "a/5.jpg", "a/zz.png")]


def test_a_reduced_jpeg_that_is_cut_short_is_named(tmp_path):
    (path,) = write_jpegs(tmp_path, [(96, 80)])
    content = path.read_bytes()
    path.write_bytes(content[: int(0.9 * len(content))])
    recipe = data.image_folder(tmp_path, image_size=(12, 10), global_batch_size=1, max_jpeg_ratio=8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path} cannot be read, or decoded as an image: "):
        list(recipe.dataset())
