"""Augmentations of whole image batches, each a plain function `(images, seed) -> images`.

```python
train = mk.data.batches(split, global_batch_size=512, shuffle=True,
                        augment=[mk.data.augment.flip(), mk.data.augment.pad_and_crop(4)])
```

Images are [B, H, W, C] of any dtype, which flip, pad_and_crop and cutout keep (uint8 stays uint8). `seed` is an integer
tensor of shape [2], as `tf.random.stateless_*` takes it: the same seed gives the same images. Write your own in the
same form; use only stateless random operations, or results will change from run to run. Your function is called on 16
images of a batch at a time, each time with a different seed, so the result does not depend on which worker calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit.data.nests import pick
from mirrorkit.data.stored_array import HOST
from mirrorkit.errors import RecipeError

Augmentation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_BLOCK = 16  # images that a function of the user's gets at a time

__all__ = ["Augmentation", "apply", "cutout", "flip", "normalize", "pad_and_crop"]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """An augmentation that draws for a whole batch, and changes any of its rows.

    Attributes:
        draw: the number of images in the batch and the seed -> random numbers [..., B, 1].
        change: images, and what was drawn for them -> images.
    """

    draw: Callable[[Any, tf.Tensor], tf.Tensor]
    change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    def __call__(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return self.change(images, self.draw(tf.shape(images)[0], seed))


def flip() -> Augmentation:
    """Mirror each image left-right with probability one half.

    ```python
    flip = mk.data.augment.flip()
    train = mk.data.batches(digits.train, global_batch_size=64, shuffle=True, augment=[flip])
    ```
    """

    def change(images: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(images)
        mirrored = drawn < 0.5

        def move(pixels: tf.Tensor) -> tf.Tensor:
            # the CPU kernels for rank 3 and 2 are much faster than those for rank 4 and a broadcast
            reverse = tf.reverse(tf.reshape(pixels, [-1, shape[2], shape[3]]), [1])
            whole = [-1, shape[1] * shape[2] * shape[3]]
            return tf.reshape(tf.where(mirrored, tf.reshape(reverse, whole), tf.reshape(pixels, whole)), shape)

        return move(images) if images.dtype.size == 1 else _in_floats(move, images)

    return _Drawn(lambda size, seed: tf.random.stateless_uniform([size, 1], seed), change)


def pad_and_crop(pixels: int = 4, *, mode: str = "constant") -> Augmentation:
    """Pad each image by `pixels` on every side and crop it back to its size at a random place.

    ```python
    crop = mk.data.augment.pad_and_crop(4)
    train = mk.data.batches(digits.train, global_batch_size=64, shuffle=True, augment=[crop])
    ```

    The standard CIFAR augmentation (He et al. 2015, https://arxiv.org/abs/1512.03385, section 4.2).

    Args:
        pixels: the largest shift in each direction, in pixels.
        mode: what fills the border: "constant" (zeros), "reflect" or "symmetric", as in `tf.pad`.

    Raises:
        RecipeError: `pixels` below 1, or a mode that `tf.pad` does not know.
    """
    if pixels < 1:
        raise RecipeError(f"pad_and_crop(pixels={pixels}) was asked for; it must be at least 1.")
    if mode not in ("constant", "reflect", "symmetric"):
        raise RecipeError(f'pad_and_crop(mode={mode!r}) was asked for; choose from "constant", "reflect", "symmetric".')

    def mirrored(length: tf.Tensor) -> tf.Tensor:
        with tf.device(HOST):
            return tf.cast(tf.pad(tf.range(length), [[pixels, pixels]], mode=mode.upper()), tf.int64)

    def draw(size: Any, seed: tf.Tensor) -> tf.Tensor:
        # in int64: a GPU would send int32 to the host and back
        return tf.cast(tf.random.stateless_uniform([2, size, 1], seed, 0, 2 * pixels + 1, tf.int32), tf.int64)

    def change(images: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(images)
        size, height, width = shape[0], shape[1], shape[2]
        rows, columns = offsets[0] + _range(height), offsets[1] + _range(width)  # of the padded images
        border = pixels if mode == "constant" else 0
        if not border:  # the border repeats pixels of the image
            rows, columns = tf.gather(mirrored(height), rows), tf.gather(mirrored(width), columns)
        high, wide = height + 2 * border, width + 2 * border
        rows = (rows + _range(size)[:, None] * tf.cast(high, tf.int64)) * tf.cast(wide, tf.int64)
        places = rows[:, :, None] + columns[:, None, :]  # among all pixels of the batch, [B, H, W]

        def move(images: tf.Tensor) -> tf.Tensor:
            padded = tf.pad(images, [[0, 0], [border, border], [border, border], [0, 0]]) if border else images
            return tf.reshape(tf.gather(tf.reshape(padded, [-1, shape[3]]), places), shape)

        return _in_floats(move, images)

    return _Drawn(draw, change)


def cutout(size: int = 8, *, fill: float = 0) -> Augmentation:
    """Cover a square of each image. Its center is anywhere in the image, so part of the square may be outside.

    ```python
    cutout = mk.data.augment.cutout(8, fill=127)
    train = mk.data.batches(digits.train, global_batch_size=64, shuffle=True, augment=[cutout])
    ```

    DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552.

    Args:
        size: the square's side in pixels.
        fill: the value of the covered pixels, on the images' scale.

    Raises:
        RecipeError: `size` below 1; a `fill` that the images' dtype cannot hold.
    """
    if size < 1:
        raise RecipeError(f"cutout(size={size}) was asked for; it must be at least 1.")

    def covered(length: tf.Tensor, centres: tf.Tensor) -> tf.Tensor:
        first = tf.cast(centres * tf.cast(length, tf.float32), tf.int64) - size // 2  # [B, 1]
        place = _range(length)[None, :]
        return (place >= first) & (place < first + size)

    def change(images: tf.Tensor, centres: tf.Tensor) -> tf.Tensor:
        if images.dtype.is_integer and not images.dtype.min <= fill <= images.dtype.max:
            raise RecipeError(f"cutout(fill={fill}) was asked for, which images of {images.dtype.name} cannot hold.")
        height, width = tf.shape(images)[1], tf.shape(images)[2]
        square = covered(height, centres[0])[:, :, None, None] & covered(width, centres[1])[:, None, :, None]
        return tf.where(square, tf.cast(fill, images.dtype), images)

    return _Drawn(lambda size, seed: tf.random.stateless_uniform([2, size, 1], seed), change)


def normalize(mean: float | Sequence[float], std: float | Sequence[float]) -> Augmentation:
    """Subtract `mean` and divide by `std`, per channel or for all; the result is float32.

    ```python
    normalize = mk.data.augment.normalize(mean=33.3, std=78.6)
    train = mk.data.batches(digits.train, global_batch_size=64, augment=[normalize])
    print(train.element_spec[0].dtype)  # <dtype: 'float32'>
    ```

    Both are on the images' own scale: for uint8 pixels between 0 and 255. The models of `mk.models` begin with a
    Rescaling layer and do not need it.

    Raises:
        RecipeError: a `std` that is not positive.
    """
    means = tf.constant(mean, tf.float32).numpy()
    stds = tf.constant(std, tf.float32).numpy()
    if not (stds > 0).all():
        raise RecipeError(f"normalize(std={std}) was asked for; every deviation must be positive.")
    return _Drawn(
        lambda size, seed: tf.zeros([size, 1]),  # nothing is random
        lambda images, drawn: (tf.cast(images, tf.float32) - means) / stds,
    )


class RowsToMake(NamedTuple):
    """Rows of a global batch that are gathered, mapped and augmented, and those of them that are wanted.

    Python ints, or int64 tensors where the size of a batch shows only when it is made.
    """

    first: Any  # wanted
    end: Any
    made_first: Any  # made
    made_end: Any
    size: Any  # of the global batch

    def wanted(self, made: Any) -> Any:
        """Cut what is wanted out of a nest of tensors of what was made."""
        if isinstance(self.size, int) and (self.first, self.end) == (self.made_first, self.made_end):
            return made
        return pick(made, slice(self.first - self.made_first, self.end - self.made_first))


def rows_to_make(augmentations: Sequence[Augmentation], first: Any, end: Any, size: Any) -> RowsToMake:
    """Return which rows of a batch must be made to get those from `first` to `end`: your own function gets blocks."""
    if all(isinstance(one, _Drawn) for one in augmentations):
        return RowsToMake(first, end, first, end, size)
    least = min if isinstance(end, int) and isinstance(size, int) else tf.minimum
    return RowsToMake(first, end, first // _BLOCK * _BLOCK, least(-(-end // _BLOCK) * _BLOCK, size), size)


def apply(
    augmentations: Sequence[Augmentation],
    images: tf.Tensor,
    *,
    seed: int,
    epoch: int | tf.Tensor,
    step: int | tf.Tensor,
    rows: RowsToMake | None = None,
) -> tf.Tensor:
    """Run augmentations on the batch of one step. Each gets its own seed, derived from (seed, epoch, step).

    ```python
    flip, crop = mk.data.augment.flip(), mk.data.augment.pad_and_crop(4)
    augmented = mk.data.augment.apply([flip, crop], tf.constant(images[:64]), seed=0, epoch=0, step=0)
    print(augmented.shape, augmented.dtype)  # (64, 28, 28, 1) <dtype: 'uint8'>
    ```

    `step` may be any int64 that identifies the batch. With `rows`, `images` are only those rows of the batch.
    """
    with tf.device(HOST):  # where the random operations expect their seeds
        here = tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
        here = tf.random.experimental.stateless_fold_in(here, tf.cast(step, tf.int64))
        seeds = [tf.random.experimental.stateless_fold_in(here, place) for place in range(len(augmentations))]
    for augmentation, own in zip(augmentations, seeds, strict=True):
        if not isinstance(augmentation, _Drawn):
            images = _in_blocks(augmentation, images, own, 0 if rows is None else rows.made_first)
        elif rows is None:
            images = augmentation(images, own)
        else:
            drawn = augmentation.draw(rows.size, own)[..., rows.made_first : rows.made_end, :]
            images = augmentation.change(images, drawn)
    return images


def _in_blocks(function: Augmentation, images: tf.Tensor, seed: tf.Tensor, first_row: Any) -> tf.Tensor:
    """Call a function on the blocks of images that are the rows of a batch from `first_row` on.

    The last block is filled up with its last image, so that the function always gets as many.
    """
    count = images.shape[0]
    if count == 0:
        return function(tf.zeros([_BLOCK, *images.shape[1:]], images.dtype), seed)[:0]

    def seed_of(block: tf.Tensor | int) -> tf.Tensor:
        with tf.device(HOST):
            return tf.random.experimental.stateless_fold_in(seed, tf.cast(first_row, tf.int64) + block * _BLOCK)

    with tf.device(HOST):
        count = tf.shape(images, tf.int64)[0] if count is None else tf.constant(count, tf.int64)
        blocks = -(-count // _BLOCK)
        places = tf.minimum(tf.range(blocks * _BLOCK), count - 1)
    stacked = tf.reshape(tf.gather(images, places), [-1, _BLOCK, *images.shape[1:]])
    first = function(stacked[0], seed_of(0))
    signature = tf.TensorSpec(first.shape, first.dtype)
    others = tf.map_fn(
        lambda block: function(stacked[block], seed_of(block)), tf.range(1, blocks), fn_output_signature=signature
    )
    made = tf.concat([first[None], others], 0)
    return tf.ensure_shape(tf.reshape(made, [-1, *first.shape[1:]])[:count], [images.shape[0], *first.shape[1:]])


def _in_floats(move: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Call `move`, which only moves pixels, on floats: on a GPU some of its operations do not support integers.

    Nothing is rounded: bfloat16 holds all integers of 8 bits and float32 those of 16; the bits of larger ones are
    reinterpreted as a float's.
    """
    dtype = images.dtype
    if dtype.is_floating or dtype.is_complex:
        return move(images)
    if dtype.size <= 2:
        return tf.cast(move(tf.cast(images, tf.bfloat16 if dtype.size == 1 else tf.float32)), dtype)
    return tf.bitcast(move(tf.bitcast(images, tf.float32 if dtype.size == 4 else tf.float64)), dtype)


def _range(length: tf.Tensor) -> tf.Tensor:
    """0 .. length - 1 in int64: made on the host from its int32 `length`, used on the device."""
    return tf.cast(tf.range(length), tf.int64)
