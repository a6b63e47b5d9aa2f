"""Splits: inputs with their labels, checked once, before anything trains on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.data.nests import Arrays, as_int64, checked, describe, kind, leaves, pick
from mirrorkit.errors import DataError, RecipeError


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set, held in memory. Make one with `mk.data.arrays`, which checks it.

    ```python
    part = digits.train[:100]
    print(part)  # Split(100 examples, inputs uint8 [100, 28, 28, 1], labels int64 [100], 10 classes)
    ```

    Attributes:
        images: array [N, ...], usually uint8 [N, H, W, C]; a tuple or a dict of such arrays for a model with several
            inputs. `inputs` is the same under a general name, for sets that are not images.
        labels: int64 [N] class indices, or floats [N, ...] (one-hot rows, regression targets); a tuple or a dict of
            arrays for a model with several outputs; None where there are no labels.
        num_classes: the number of classes, None where the labels are not class indices.
        sample_weight: float32 [N], or [N, T] for labels [N, T] or [N, T, ...]; or None.

    `len(split)` is N; `split[:1000]` and `split[indices]` are splits of those examples.
    """

    images: Arrays
    labels: Arrays = None
    num_classes: int | None = None
    sample_weight: np.ndarray | None = None

    @property
    def inputs(self) -> Arrays:
        """The same as `images`, by a name that fits tables, text and signals too."""
        return self.images

    def __len__(self) -> int:
        """The number of examples."""
        return len(next(leaf for _, leaf in leaves("inputs", self.inputs)))

    def __getitem__(self, index: slice | np.ndarray) -> Split:
        """The examples that a slice, an index array or a boolean mask selects, as a split."""
        if isinstance(index, (int, np.integer)):
            raise DataError(
                f"split[{index}] asks for one example; take split[{index}:{index + 1}] or split.inputs[...]."
            )
        inputs, labels, weight = (pick(value, index) for value in (self.inputs, self.labels, self.sample_weight))
        part = Split(inputs, labels, self.num_classes, weight)
        if len(part) == 0:
            raise DataError(f"split[{index}] selects none of the {len(self)} examples.")
        return part

    def __repr__(self) -> str:
        """Shapes and dtypes instead of the values."""
        weight = "" if self.sample_weight is None else ", sample_weight"
        inputs = f"Split({len(self)} examples, inputs {describe(self.inputs)}"
        if self.labels is None:
            return f"{inputs}, no labels)"
        return f"{inputs}, labels {describe(self.labels)}, {self.num_classes} classes{weight})"

    def as_element(self) -> tuple[Arrays, ...]:
        """`(inputs, labels)`, with weights `(inputs, labels, sample_weight)`, without labels `(inputs,)`."""
        whole = (self.inputs, self.labels, self.sample_weight)
        return tuple(part for part in whole if part is not None)


@dataclass(frozen=True, eq=False)
class Splits:
    """A training and a test split, and where they came from: what `mk.data.load` returns.

    ```python
    digits = mk.data.synthetic(train=256, test=64)
    print(len(digits.train), len(digits.test), digits.num_classes, digits.source)  # 256 64 10 synthetic
    ```

    Attributes:
        name: the name it was loaded by, such as "mnist".
        train: the training split.
        test: the test split.
        num_classes: the number of classes.
        class_names: one name per class.
        source: the folder that was read, "download", or "synthetic".
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...]
    source: str

    @property
    def synthetic(self) -> bool:
        """Whether the images were drawn by `mk.data.synthetic`."""
        return self.source == "synthetic"


def arrays(
    images: Arrays,
    labels: Arrays = None,
    *,
    num_classes: int | None = None,
    sample_weight: np.ndarray | None = None,
) -> Split:
    """Check your own arrays and make a split of them.

    ```python
    train = mk.data.arrays(images, labels, num_classes=10)
    pairs = mk.data.arrays((left, right), same)                        # a model with two inputs
    notes = mk.data.arrays({"text": tokens, "day": days}, labels)      # inputs by name
    plain = mk.data.arrays(images)                                     # no labels
    ```

    Tuples and dicts of arrays, also nested, are for models with several inputs or outputs, as in Keras's `fit`. A list
    of arrays is refused, since it may also mean one array: pass a tuple, or `np.stack(examples)`.

    Args:
        images: the inputs: numbers [N, ...] of any rank and dtype (uint8 [N, H, W, C] for images), or a tuple or a dict
            of them.
        labels: integers [N] or [N, 1] (class indices; they become int64 [N]), integers [N, ...] (a class per pixel
            or per token), floats [N, ...] (one-hot rows or regression targets); or a tuple or a dict of arrays, which
            stay as they are. None for a set without labels, whose batches are `(x,)`.
        num_classes: the number of classes; None takes the largest label + 1 (None for float labels).
        sample_weight: numbers [N], how much each example counts; or [N, T], how much each position of labels [N, T] or
            [N, T, ...] does; becomes float32.

    Raises:
        RecipeError: `num_classes` below 1; `num_classes` or `sample_weight` without labels.
        DataError: arrays of different lengths, an empty set, labels outside the classes, a dtype that is not numeric, a
            list of arrays. Values are not checked for NaN.
    """
    num_classes = None if num_classes is None else whole_number("num_classes", num_classes, RecipeError)
    for name, value in (("num_classes", num_classes), ("sample_weight", sample_weight)):
        if labels is None and value is not None:
            raise RecipeError(f"arrays was given {name} without labels. Give both or neither.")
    given = {"images": images, "labels": labels, "sample_weight": sample_weight}
    made = {name: checked(name, value) for name, value in given.items() if value is not None or name == "images"}
    images, labels, sample_weight = (made.get(name) for name in given)
    if sample_weight is not None:
        found = sample_weight.shape if isinstance(sample_weight, np.ndarray) else kind(sample_weight)
        positions = labels.shape[1:] if isinstance(labels, np.ndarray) else ()
        if isinstance(found, str) or found[1:] != positions[: len(found) - 1]:
            raise DataError(
                "sample_weight must have shape [N], one number per example, or one per position of the labels, [N, T] "
                f"for labels [N, T]; found {found}."
            )
        sample_weight = sample_weight.astype(np.float32)
    all_leaves = [leaf for name, value in made.items() for leaf in leaves(name, value)]
    first, length = all_leaves[0][0], len(all_leaves[0][1])
    for name, leaf in all_leaves:
        if len(leaf) != length:
            raise DataError(
                f"{first} holds {length} examples and {name} holds {len(leaf)}; each example needs one of each. "
                "Check that both come from the same split, in the same order. A tuple of arrays is several inputs or "
                "outputs; np.stack makes one of its examples."
            )
    if length == 0:
        raise DataError(f"{first} holds no example (shape {all_leaves[0][1].shape}); a split needs at least one.")
    if isinstance(labels, np.ndarray):
        labels, num_classes = _checked_labels(labels, num_classes)
    return Split(images, labels, num_classes, sample_weight)


@checks_arguments(RecipeError)
def one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """One-hot rows for class indices: integers [N] -> float32 [N, num_classes]; `class_indices` is the inverse.

    ```python
    print(mk.data.one_hot(np.array([2, 0]), 3).tolist())  # [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    ```

    Raises:
        DataError: labels that are not integers [N], or lie outside 0 .. num_classes - 1.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"one_hot needs integer class indices [N]; found {labels.dtype} {list(labels.shape)}.")
    _check_range(labels, num_classes)
    return (labels[:, None] == np.arange(num_classes)).astype(np.float32)


def class_indices(one_hot: np.ndarray) -> np.ndarray:
    """Class indices of one-hot rows (or of probabilities, or logits): [N, C] -> int64 [N], the largest of each row.

    ```python
    print(mk.data.class_indices(np.array([[0.1, 0.9], [0.8, 0.2]])))  # [1 0]
    ```

    Raises:
        DataError: an array that is not [N, C] with C >= 1.
    """
    rows = np.asarray(one_hot)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise DataError(f"class_indices needs rows [N, C]; found shape {list(rows.shape)}.")
    return rows.argmax(axis=1).astype(np.int64)


def _checked_labels(labels: np.ndarray, num_classes: int | None) -> tuple[np.ndarray, int | None]:
    if labels.dtype.kind == "f":
        if num_classes is not None and labels.shape[1:] != (num_classes,):
            raise DataError(
                f"float labels with num_classes={num_classes} must be rows [N, {num_classes}]; found "
                f"{list(labels.shape)}. Class indices are integers; regression targets take no num_classes."
            )
        return labels, num_classes
    labels = as_int64(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and (labels >= 0).all() and (labels.max(axis=1) == 1).all() and (labels.sum(axis=1) == 1).all():
        raise DataError(
            f"labels {list(labels.shape)} are one-hot rows of integers. Pass mk.data.class_indices(labels), "
            "or labels.astype('float32') to train on one-hot rows."
        )
    if num_classes is None:
        num_classes = max(int(labels.max()) + 1, 1)
        if (labels < 0).any():
            raise DataError(
                f"labels hold whole numbers below 0, the first is {int(labels[labels < 0][0])}; class indices begin at "
                "0. If they are not classes (regression targets, -1 and 1 for a hinge loss), or ignore_class=-1 marks "
                "labels to ignore, pass labels.astype('float32'): the loss is the same."
            )
    _check_range(labels, num_classes)
    return labels, num_classes


def _check_range(labels: np.ndarray, num_classes: int) -> None:
    outside = np.argwhere((labels < 0) | (labels >= num_classes))
    if len(outside):
        where = tuple(int(i) for i in outside[0])
        raise DataError(
            f"labels must lie in 0 .. {num_classes - 1} for {num_classes} classes; {len(outside)} do not, the first is "
            f"{int(labels[where])} at {where[0] if len(where) == 1 else where}."
        )
