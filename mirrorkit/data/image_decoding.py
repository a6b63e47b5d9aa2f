"""Decode image files and bring them to one size, in TensorFlow; name the ones that cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import whole_number
from mirrorkit.data.disk import reason
from mirrorkit.errors import DataError, RecipeError

CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}

_SMOOTHING = ("gaussian", "mitchellcubic")  # these change an image of the size too


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The size and the channels that images get, and how; the names are those of Keras.

    Raises:
        RecipeError: a value that is not one of them.
    """

    image_size: tuple[int, int]
    color_mode: str
    interpolation: str
    crop_to_aspect_ratio: bool
    pad_to_aspect_ratio: bool

    def __post_init__(self) -> None:
        """Check the values."""
        size = self.image_size
        if not isinstance(size, (tuple, list)) or len(size) != 2:
            raise RecipeError(f"image_size must be (height, width) in pixels, found {size!r}.")
        for length in size:
            whole_number("Each of image_size", length, RecipeError)
        known = [value for name, value in vars(tf.image.ResizeMethod).items() if name.isupper()]
        for name, values in {"color_mode": CHANNELS, "interpolation": known}.items():
            if getattr(self, name) not in values:
                raise RecipeError(f"{name} must be one of {', '.join(values)}; found {getattr(self, name)!r}.")
        if self.crop_to_aspect_ratio and self.pad_to_aspect_ratio:
            raise RecipeError("Ask for crop_to_aspect_ratio or pad_to_aspect_ratio, not for both.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image."""
        return (*self.image_size, CHANNELS[self.color_mode])

    def batch(self, paths: tf.Tensor) -> tf.Tensor:
        """Return the images of these files, uint8 [N, H, W, C]; an error names the file that has none.

        To name it costs nothing where there is none: the second dataset, which tries file by file, is not begun.
        """
        given = tf.data.Dataset.from_tensors(paths)
        whole = given.map(self._images).ignore_errors()
        named = given.map(self._named)
        return whole.concatenate(named).take(1).get_single_element()

    def _images(self, paths: tf.Tensor) -> tf.Tensor:
        images = tf.map_fn(self._image, paths, fn_output_signature=tf.TensorSpec(self.shape, tf.uint8))
        return tf.ensure_shape(images, [paths.shape[0], *self.shape])

    @tf.autograph.experimental.do_not_convert
    def _named(self, paths: tf.Tensor) -> tf.Tensor:
        """Return the images of files of which one could not be decoded; an error names it unless that works now."""

        def require(paths: np.ndarray) -> bool:
            for path in paths:
                try:
                    self._image(tf.constant(path))
                except tf.errors.OpError as error:
                    raise _undecodable(path.decode(), reason(error)) from None
            return True

        with tf.control_dependencies([tf.numpy_function(require, [paths], tf.bool)]):
            return self._images(paths)

    def _image(self, path: tf.Tensor) -> tf.Tensor:
        """Decode a file and resize the image, as Keras's `image_dataset_from_directory` does, and round."""
        image = _decoded(path, CHANNELS[self.color_mode])

        def resized() -> tf.Tensor:
            if self.pad_to_aspect_ratio:
                floats = tf.image.resize_with_pad(image, *self.image_size, method=self.interpolation)
            else:
                part = _cropped(image, self.image_size) if self.crop_to_aspect_ratio else image
                floats = tf.image.resize(part, self.image_size, method=self.interpolation)
            return tf.saturate_cast(tf.round(floats), tf.uint8)

        if self.interpolation in _SMOOTHING:
            return tf.ensure_shape(resized(), self.shape)
        fits = tf.reduce_all(tf.shape(image)[:2] == self.image_size)  # then it would stay the same
        return tf.ensure_shape(tf.cond(fits, lambda: image, resized), self.shape)


def is_image(path: str) -> bool:
    """Return whether a file can be read, and decoded as an image."""
    try:
        _decoded(tf.constant(path), 0)
    except tf.errors.OpError:
        return False
    return True


def _undecodable(path: str, why: str) -> DataError:
    if is_image(path):
        return DataError(f"{path} is whole, but cannot be decoded with this color_mode: {why}. Choose another one.")
    return DataError(
        f"{path} cannot be read, or decoded as an image: {why}. Replace or delete it, or let image_folder leave out "
        "such files: skip_corrupt=True."
    )


def _decoded(path: tf.Tensor, channels: int) -> tf.Tensor:
    """The image in a file, uint8 [H, W, C]; of an animation the first one."""
    image = tf.io.decode_image(tf.io.read_file(path), channels=channels, expand_animations=False)
    return tf.ensure_shape(image, [None, None, channels or None])


def _cropped(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """The largest part with the proportions of `size`, from the middle, in float32 arithmetic as in Keras."""
    height, width = tf.unstack(tf.shape(image)[:2])

    def part(length: tf.Tensor, other: tf.Tensor, wanted: int, other_wanted: int) -> tuple[tf.Tensor, tf.Tensor]:
        fitting = tf.cast(tf.cast(other * wanted, tf.float32) / other_wanted, tf.int32)
        fitting = tf.maximum(tf.minimum(length, fitting), 1)
        return tf.cast(tf.cast(length - fitting, tf.float32) / 2, tf.int32), fitting

    top, rows = part(height, width, size[0], size[1])
    left, columns = part(width, height, size[1], size[0])
    return image[top : top + rows, left : left + columns]
