"""Decoding and resizing: what Keras makes of the same files, rounded."""

from __future__ import annotations

import base64
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


def test_a_jpeg_that_is_cut_short_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "0.jpg"
    image = np.random.default_rng(2).integers(0, 256, (96, 80, 3), dtype=np.uint8)
    content = tf.io.encode_jpeg(image).numpy()
    path.write_bytes(content[: int(0.9 * len(content))])
    recipe = data.image_folder(tmp_path, image_size=(12, 10), global_batch_size=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path} cannot be read, or decoded as an image: "):
        list(recipe.dataset())
