"""The drawn digits: the same each time, of all classes."""

from __future__ import annotations

import numpy as np
import pytest

from mirrorkit import data
from mirrorkit.errors import RecipeError


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_shapes_dtypes_and_determinism(shape):
    one, two = (data.synthetic(shape, train=100, test=20, seed=3) for _ in range(2))
    other = data.synthetic(shape, train=100, test=20, seed=4)
    assert one.train.images.shape == (100, *shape)
    assert one.train.images.dtype == np.uint8
    assert one.train.labels.dtype == np.int64
    np.testing.assert_array_equal(one.train.images, two.train.images)
    np.testing.assert_array_equal(one.test.labels, two.test.labels)
    assert (one.train.images != other.train.images).any()
    assert set(one.train.labels) == set(range(10))
    assert one.synthetic


def test_fewer_classes_and_test_images_whatever_the_number_of_training_images():
    few, many = (data.synthetic(train=n, test=50, num_classes=2) for n in (50, 100))
    assert set(many.train.labels) == {0, 1}
    assert (many.num_classes, many.class_names) == (2, ("0", "1"))
    np.testing.assert_array_equal(few.test.images, many.test.images)
    assert not (few.train.images == few.test.images).all(axis=(1, 2, 3)).any()


def test_what_it_cannot_draw_is_refused():
    shapes = [{"shape": shape} for shape in ((8, 8, 1), (28, 28, 2), (28, 28))]
    for options in (*shapes, {"train": 0}, {"seed": -1}, {"num_classes": 11}):
        with pytest.raises(RecipeError, match="synthetic"):
            data.synthetic(**options)
