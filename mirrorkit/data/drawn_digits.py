"""Digit-like labelled images drawn with NumPy, for tests and for machines without data or network."""

from __future__ import annotations

import numpy as np

from mirrorkit.data.splits import Split, Splits
from mirrorkit.errors import RecipeError

# 7 rows of 5 cells for each digit; a "#" is inked
_FONT = """
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .##..
"""
_SHAPES_PER_DIGIT = 64  # sizes, slants and stroke widths that images are drawn from
_SHIFT = 3  # how far an image moves at most, in pixels, each way


def synthetic(
    shape: tuple[int, int, int] = (28, 28, 1),
    *,
    train: int = 12_000,
    test: int = 2_000,
    num_classes: int = 10,
    seed: int = 0,
) -> Splits:
    """Draw digits from a small font: random size, slant, stroke width, place, contrast, color and noise.

    A stand-in for MNIST (28, 28, 1) and CIFAR (32, 32, 3): a small convolutional net passes 95 %, a linear model stays
    well below that. It is not a benchmark; accuracies on it say nothing about real images.

    ```python
    digits = mk.data.synthetic((32, 32, 3), train=50_000, test=10_000)
    ```

    Args:
        shape: (height, width, channels), at least 16 x 16, with 1 or 3 channels.
        train: the number of training images.
        test: the number of test images, which do not depend on `train`.
        num_classes: how many digits to draw, from 0 on: 1 to 10.
        seed: the same seed gives the same images.

    Returns:
        Splits with images uint8 [N, H, W, C] and labels int64 [N].

    Raises:
        RecipeError: a shape, a number of images or of classes that it cannot draw.
    """
    if len(shape) != 3 or min(shape[:2]) < 16 or shape[2] not in (1, 3):
        raise RecipeError(f"synthetic(shape={shape}) was asked for; it draws (H, W, 1) or (H, W, 3) with H, W >= 16.")
    if train < 1 or test < 1 or seed < 0:
        raise RecipeError(f"synthetic(train={train}, test={test}, seed={seed}): at least 1, 1 and 0 are needed.")
    if not 1 <= num_classes <= 10:
        raise RecipeError(f"synthetic(num_classes={num_classes}) was asked for; it draws 1 to 10 digits.")
    shapes = _digit_shapes(shape[0], shape[1], np.random.default_rng([seed, 0]))[:num_classes]
    splits = [_draw(shapes, count, shape, np.random.default_rng([seed, i])) for i, count in ((1, train), (2, test))]
    names = tuple(str(digit) for digit in range(num_classes))
    return Splits("synthetic", splits[0], splits[1], num_classes, names, "synthetic")


def _digit_shapes(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Ink of every digit in every shape, with a margin to shift in: uint8 [10, shapes, H + 2 shift, W + 2 shift]."""
    font = np.array([[list(glyph) for glyph in line.split()] for line in _FONT.split("\n") if line]) == "#"
    y = np.arange(-_SHIFT, height + _SHIFT, dtype=np.float32)[:, None]
    x = np.arange(-_SHIFT, width + _SHIFT, dtype=np.float32)[None, :]
    shapes = np.empty((10, _SHAPES_PER_DIGIT, y.size, x.size), np.uint8)
    for digit in range(10):
        rows, columns = np.nonzero(font[:, digit])
        for i in range(_SHAPES_PER_DIGIT):
            cell = min(height / 9, width / 7) * rng.uniform(0.65, 1.0)  # pixels per font cell
            slant, squeeze, stroke = rng.uniform(-0.3, 0.3), rng.uniform(0.8, 1.1), rng.uniform(0.45, 0.8)
            v = (y - (height - 1) / 2) / cell
            u = ((x - (width - 1) / 2) / cell + slant * v) / squeeze
            away = np.full(u.shape, np.inf, np.float32)
            for row, column in zip(rows - 3, columns - 2, strict=True):
                np.minimum(away, (v - row) ** 2 + (u - column) ** 2, out=away)
            edge = (stroke - np.sqrt(away)) * cell + 0.5  # an edge one pixel wide, as in print
            shapes[digit, i] = 255 * edge.clip(0, 1)
    return shapes


def _draw(shapes: np.ndarray, count: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Split:
    height, width, channels = shape
    labels = rng.integers(0, len(shapes), count)
    variants = rng.integers(0, _SHAPES_PER_DIGIT, count)
    down, right = rng.integers(0, 2 * _SHIFT + 1, (2, count))
    # two colours (or greys) per image, far enough apart to be told apart
    paper = rng.uniform(0, 110, (count, 1, 1, channels)).astype(np.float32)
    ink = paper + rng.uniform(60, 145, (count, 1, 1, 1)).astype(np.float32)
    if channels == 3:
        dark_on_light = rng.random((count, 1, 1, 1)) < 0.5
        paper, ink = np.where(dark_on_light, 255 - paper, paper), np.where(dark_on_light, 255 - ink, ink)
    windows = np.lib.stride_tricks.sliding_window_view(shapes, (height, width), axis=(2, 3))
    images = np.empty((count, *shape), np.uint8)
    for first in range(0, count, 1000):  # in chunks, so that the float pixels stay in the processor's cache
        part = slice(first, first + 1000)
        mix = windows[labels[part], variants[part], down[part], right[part]].astype(np.float32)[..., None] / 255
        noise = rng.standard_normal(mix.shape, dtype=np.float32) * 20
        images[part] = (paper[part] + (ink[part] - paper[part]) * mix + noise).clip(0, 255)
    return Split(images, labels, len(shapes))
