"""Global batches of a split in memory: shuffled, mapped, augmented, the same whatever the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.augment import Augmentation, apply, cutout, flip, normalize, pad_and_crop
from mirrorkit.data.recipe import Recipe, check_sizes
from mirrorkit.data.splits import Split
from mirrorkit.errors import DataError

MapFunction = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Batches(Recipe):
    """The recipe that `mk.data.batches` makes; see there. Its attributes are that function's arguments."""

    split: Split
    global_batch_size: int
    shuffle: bool = False
    seed: int = 0
    augment: tuple[Augmentation, ...] = ()
    map: MapFunction | None = None
    one_hot: bool = False
    cache: bool = False
    drop_remainder: bool = False
    prefetch: int = tf.data.AUTOTUNE

    @property
    def num_examples(self) -> int:
        """The number of examples in the split."""
        return len(self.split)

    def order(self, epoch: int) -> np.ndarray:
        """The examples of `epoch` in the order in which they come, as indices into the split, int64 [N]."""
        if not self.shuffle:
            return np.arange(self.num_examples)
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)

    @property
    def _as_written(self) -> bool:
        return not self.shuffle

    def dataset(self, epoch: int = 0, start: int = 0) -> tf.data.Dataset:
        """The global batches `start`, `start + 1`, ... of `epoch`, without touching those before.

        Raises:
            DataError: a negative epoch, or a start outside 0 .. steps_per_epoch.
        """
        self._check_position(epoch, start)
        return self._all_of(range(epoch, epoch + 1), start)

    def _all_of(self, epochs: range, start: int = 0) -> tf.data.Dataset:
        whole = self._tensors
        size, total, steps = self.global_batch_size, self.num_examples, self.steps_per_epoch
        even = self.drop_remainder or total % size == 0
        with tf.init_scope(), tf.device("CPU:0"):
            orders = None if self._as_written else tf.constant(np.stack([self.order(epoch) for epoch in epochs]))

        def take(row: tf.Tensor, step: tf.Tensor) -> Any:
            first = step * size
            # a static batch size, where every batch has the same, spares the model's graph its dynamic shapes
            length = size if even else tf.minimum(tf.constant(size, tf.int64), total - first)
            if orders is not None:
                places = tf.slice(orders, [row, first], [1, length])[0]
                return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), whole)
            return tf.nest.map_structure(lambda tensor: _rows(tensor, first, length), whole)

        def batch(place: tf.Tensor) -> Any:
            row, step = place // steps, place % steps
            return self.finish(take(row, step), epoch=epochs.start + row, step=step)

        places = tf.data.Dataset.range(start, len(epochs) * steps)
        batch = sparing_autograph(batch, self.map, self.augment)
        batches = places.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(self.prefetch)
        return batches.with_options(_as_it_stands())

    def finish(
        self, element: tuple[Any, ...], *, epoch: Any, step: tf.Tensor, replica: int | tf.Tensor | None = None
    ) -> Any:
        """The work on the gathered examples of a batch, or on those of one replica: map, augment, one-hot labels."""
        depth = self.split.num_classes if self.one_hot else None
        map_here = None if self.cache else self.map
        return finish(element, map_here, self.augment, depth, seed=self.seed, epoch=epoch, step=step, replica=replica)

    @functools.cached_property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a batch, as `tf.data.Dataset.element_spec` gives them."""
        return self.dataset().element_spec

    @functools.cached_property
    def _tensors(self) -> Any:
        # one copy on the host, shared by the datasets of all epochs; never on an accelerator, whatever scope we are in
        with tf.init_scope(), tf.device("CPU:0"):
            whole = tf.nest.map_structure(tf.constant, self.split.as_element())
            if self.map is None or not self.cache:
                return whole
            pieces = tf.data.Dataset.from_tensor_slices(whole).batch(self.global_batch_size)
            mapped = list(pieces.map(self.map, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *mapped)


def batches(
    split: Split,
    *,
    global_batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    augment: Sequence[Augmentation] | None = None,
    map: MapFunction | None = None,
    one_hot: bool = False,
    cache: bool = False,
    drop_remainder: bool = False,
    prefetch: int = tf.data.AUTOTUNE,
) -> Batches:
    """A recipe for the global batches of a split: `.dataset(epoch=0, start=0)`, `.steps_per_epoch`, `.element_spec`.

    ```python
    train = mk.data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
    for x, y in train.dataset(epoch=3):
        ...
    ```

    A batch is `(x, y)`, or `(x, y, sample_weight)` where the split has weights; x and y are tensors, or dicts of
    tensors where the split holds dicts. Pixels keep their dtype (uint8), labels are int64 [B]. The work on a batch is
    done in this order: gather, `map`, `augment`, `one_hot`.

    Args:
        split: from `mk.data.load`, `mk.data.synthetic` or `mk.data.arrays`.
        global_batch_size: examples per step over all replicas together. The last batch of an epoch may be smaller.
        shuffle: draw a new order for every epoch: a pure function of (seed, epoch).
        seed: fixes the orders and the augmentations.
        augment: augmentations of `mk.data.augment`, run one after the other on the whole global batch, with random
            numbers that depend on (seed, epoch, step) alone: not on the replicas, the threads, nor on `start`.
        map: your own function of a batch, `(x, y) -> (x, y)` in TensorFlow operations; it must treat each example apart
            from the others. Runs in parallel.
        one_hot: give labels as float32 [B, num_classes].
        cache: run `map` once over the whole split and keep the result in memory, instead of in every epoch.
        drop_remainder: leave out the last batch when it is smaller.
        prefetch: how many batches are made ahead; tf.data finds the number by default.

    Raises:
        DataError: a batch that is not positive or larger than the set; a negative seed; `augment` on anything but
            images [N, H, W, C] (use `map` for the rest); `one_hot` on labels that are no classes.
    """
    if not isinstance(split, Split):
        raise DataError(
            f"batches needs a split, found {type(split).__name__}. Make one with mk.data.arrays(images, labels), "
            "or take .train or .test of a loaded data set."
        )
    check_sizes(global_batch_size, len(split), seed)
    check_augment(augment, getattr(split.images, "shape", []) if map is None else None)
    labels = split.labels
    if one_hot and (isinstance(labels, Mapping) or labels.dtype.kind == "f" or split.num_classes is None):
        raise DataError(f"one_hot=True needs class indices (integers); {split!r} has none.")
    return Batches(
        split=split,
        global_batch_size=int(global_batch_size),
        shuffle=shuffle,
        seed=int(seed),
        augment=tuple(augment or ()),
        map=map,
        one_hot=one_hot,
        cache=cache,
        drop_remainder=drop_remainder,
        prefetch=prefetch,
    )


def finish(
    element: tuple[Any, ...],
    map: MapFunction | None,
    augment: Sequence[Augmentation],
    one_hot: int | None,
    *,
    seed: int,
    epoch: int | tf.Tensor,
    step: tf.Tensor,
    replica: int | tf.Tensor | None = None,
) -> Any:
    """The work on one gathered batch, in this order: `map`, `augment`, one-hot labels of that many classes."""
    element = element if map is None else map(*element)
    if not isinstance(element, (tuple, list)) or len(element) not in (2, 3):
        raise DataError(f"map must return (x, y) or (x, y, sample_weight), as it takes them; it returned {element!r}.")
    x, y, *weight = element
    x = apply(augment, x, seed=seed, epoch=epoch, step=step, replica=replica)
    return (x, y if one_hot is None else tf.one_hot(y, one_hot, dtype=tf.float32), *weight)


def sparing_autograph(function: MapFunction, map: MapFunction | None, augment: Sequence[Augmentation]) -> MapFunction:
    """Keep AutoGraph from rewriting `function`, which takes 0.3 s, unless it calls functions of the user's."""
    if map is None and all(one.__module__ == flip.__module__ for one in augment):
        return tf.autograph.experimental.do_not_convert(function)
    return function


def check_augment(augment: Sequence[Augmentation] | None, shape: Sequence[int | None] | None) -> None:
    """Refuse an `augment` that is no list of functions, or inputs of a shape that it cannot work on.

    A shape of None is not known yet (a `map` makes it); an empty one stands for a dict of inputs.

    Raises:
        DataError: see above.
    """
    if augment is None:
        return
    if callable(augment) or not all(callable(one) for one in augment):
        raise DataError(
            f"augment must be a list of augmentations, such as [mk.data.augment.flip()]; found {augment!r}."
        )
    for one in augment:
        if one in (cutout, flip, normalize, pad_and_crop):
            name = one.__name__
            raise DataError(f"augment holds {name} itself, which makes the augmentation. Call it: [{name}(...)].")
    if augment and shape is not None and len(shape) != 4:
        found = f"shape {list(shape)}" if len(shape) else "a dict of inputs"
        raise DataError(f"augment works on images [N, H, W, C]; found {found}. Use map= for anything else.")


def _as_it_stands() -> tf.data.Options:
    """Keep tf.data from rewriting a pipeline, for which it copies all tensors that this refers to: the whole set."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _rows(tensor: tf.Tensor, first: tf.Tensor, length: Any) -> tf.Tensor:
    rows = tensor[first : first + tf.cast(length, first.dtype)]
    return tf.ensure_shape(rows, [length if isinstance(length, int) else None, *tensor.shape[1:]])
