"""Digit-like labelled images drawn with NumPy, for tests and for machines without data or network."""

from __future__ import annotations

import numpy as np

from mirrorkit.data.splits import Split, Splits
from mirrorkit.errors import RecipeError

# 7 rows of 5 cells for each digit; a "#" is inked. The last row and the character after each glyph are blank borders.
_FONT = b"""\
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .##..
..... ..... ..... ..... ..... ..... ..... ..... ..... .....
"""


def synthetic(
    shape: tuple[int, int, int] = (28, 28, 1),
    *,
    train: int = 12_000,
    test: int = 2_000,
    num_classes: int = 10,
    seed: int = 0,
) -> Splits:
    """Draw digits from a small font: random size, slant, position, contrast, color and noise.

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
    if min(train, test, seed + 1, num_classes) < 1 or num_classes > 10:
        raise RecipeError(
            f"synthetic(train={train}, test={test}, num_classes={num_classes}, seed={seed}) was asked for; it draws at "
            "least 1 image each, of 1 to 10 digits, with a seed >= 0."
        )
    names = tuple(map(str, range(num_classes)))
    drawn_train = _draw(train, shape, num_classes, np.random.default_rng([seed, 1]))
    drawn_test = _draw(test, shape, num_classes, np.random.default_rng([seed, 2]))
    return Splits("synthetic", drawn_train, drawn_test, num_classes, names, "synthetic")


def _draw(count: int, shape: tuple[int, int, int], num_classes: int, rng: np.random.Generator) -> Split:
    labels = rng.integers(0, num_classes, count)
    # in parts, so that the float pixels stay in the processor's cache
    images = [_images(labels[first : first + 1000], shape, rng) for first in range(0, count, 1000)]
    return Split(np.concatenate(images), labels, num_classes)


def _images(labels: np.ndarray, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    height, width, channels = shape

    def uniform(low: float, high: float, *sizes: int) -> np.ndarray:
        return rng.uniform(low, high, (len(labels), 1, 1, *sizes)).astype(np.float32)

    # v and u say where a pixel is, relative to the digit's center: in pixels, then in cells of the font, then slanted.
    # So they give the row and the column of the cell; -1, the blank border, above, below and beside the digit.
    cell = min(height / 9, width / 7) * uniform(0.65, 1)  # pixels per cell
    v = (np.arange(height)[:, None] - height / 2 + uniform(-3, 3)) / cell
    u = (np.arange(width) - width / 2 + uniform(-3, 3)) / cell + uniform(-0.3, 0.3) * v
    rows = np.floor(v + 3.5).clip(-1, 7).astype(int)
    columns = np.floor(u / uniform(0.8, 1.1) + 2.5).clip(-1, 5).astype(int)
    glyphs = np.frombuffer(_FONT, np.uint8).reshape(8, 10, 6) == ord("#")
    ink = glyphs[rows, labels[:, None, None], columns][..., None]
    # two colors (or greys) per image, far enough apart to be told apart
    noise = 20 * rng.standard_normal((*ink.shape[:3], channels), np.float32)
    images = uniform(0, 110, channels) + uniform(60, 145, 1) * ink + noise
    if channels == 3:  # dark on light as often as light on dark
        images = np.where(uniform(0, 1, 1) < 0.5, 255 - images, images)
    return images.clip(0, 255).astype(np.uint8)
