"""Global batches of a split in memory: shuffled, mapped, augmented, the same on any machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.distribution import uncopied
from mirrorkit.data.nests import pick
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.data.splits import Split
from mirrorkit.errors import DataError, RecipeError


class OfSplit(PreparedRecipe):
    """A recipe that gathers its examples from a split in memory, which may hold the paths of files."""

    _split: Split

    def _take(self, split: Split, shape: Sequence[int | None] | None) -> None:
        """Check the arguments for a split, whose inputs become those of this shape in a batch."""
        self._set(_split=split)
        labels = split.labels
        are_classes = isinstance(labels, np.ndarray) and labels.dtype.kind != "f"
        self._settle(len(split), shape, has_classes=are_classes, labels=labels)

    @property
    def num_classes(self) -> int | None:
        """The number of classes; None where the labels are not classes."""
        return self._split.num_classes

    @functools.cached_property
    def host_tensors(self) -> Any:
        """The whole split as tensors in the host's memory, in the form of `Split.as_element`.

        There is one copy, which the datasets of all epochs share.
        """
        self._check_map()
        with tf.init_scope(), tf.device("CPU:0"):  # never on an accelerator, whatever scope we are in
            return tf.nest.map_structure(tf.constant, self._split.as_element())

    def _dataset(self, epoch: int, start: int, context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        return self.joined(range(epoch, epoch + 1), start, context)

    def joined(
        self, epochs: range, start: int = 0, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """See `Recipe`; made together, since an epoch may be a few batches."""
        whole = self.host_tensors
        size, steps = self.global_batch_size, self.steps_per_epoch
        is_drawn = self.shuffle or self.weights is not None
        with tf.init_scope(), tf.device("CPU:0"):
            orders = tf.constant(np.stack([self.order(epoch) for epoch in epochs])) if is_drawn else None

        def gather(row: tf.Tensor, first: tf.Tensor, length: Any) -> Any:
            if orders is not None:
                places = tf.slice(orders, [row, first], [1, length])[0]
                return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), whole)
            return tf.nest.map_structure(lambda tensor: _rows(tensor, first, length), whole)

        def batch(place: tf.Tensor) -> Any:
            row, step = place // steps, place % steps
            rows = self.rows_of(step, input_context)
            # a static batch size, where all batches have the same, spares the model's graph its dynamic shapes
            gathered = gather(row, step * size + rows.made_first, rows.made_end - rows.made_first)
            element = self._element(*gathered)
            return self.finish(element, epoch=epochs.start + row, step=step, rows=rows if input_context else None)

        places = tf.data.Dataset.range(start, len(epochs) * steps)
        return uncopied(self._made(places, batch))

    def _first_examples(self, number: int) -> tuple[Any, ...]:
        return self._element(*pick(self._split.as_element(), slice(number)))


@dataclass(frozen=True, eq=False)
class Batches(OfSplit):
    """A recipe for the global batches of a split: `.dataset(epoch=0, start=0)`, `.steps_per_epoch`, `.element_spec`.

    `mk.data.batches` is this class. Its arguments are the recipe's attributes.

    ```python
    train = mk.data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
    for x, y in train.dataset(epoch=3):
        ...
    ```

    A batch is `(x, y)`, or `(x, y, sample_weight)` where the split has weights, or `(x,)` where it has no labels; x and
    y are tensors, or tuples and dicts of tensors as in the split. Pixels keep their dtype (uint8), class indices are
    int64 [B]. The work on a batch is done in this order: gather, `map`, `augment`, `one_hot`.

    Args:
        split: from `mk.data.load`, `mk.data.synthetic` or `mk.data.arrays`.
        global_batch_size: examples per step over all replicas together. The last batch of an epoch may be smaller. A
            smaller set gives one batch with all its examples, and this becomes their number.
        shuffle: draw a new order for every epoch: a pure function of (seed, epoch).
        weights: draw the examples by weights, as for a set in which some classes are rare. Numbers [N], one for each
            example: how often it is drawn beside the others. Or a dict {class: number}: how often an example of the
            class is drawn, however many it has. Or "balanced": all classes equally often. They need not add up to 1.
            Each epoch draws other examples, as a pure function of (seed, epoch), whatever `shuffle` says.
        replacement: whether an example may be drawn several times in an epoch.
        examples_per_epoch: how many are drawn; as many as there are by default.
        seed: fixes the orders and the augmentations.
        augment: augmentations of `mk.data.augment`, run one after the other on the whole global batch. Their random
            numbers depend only on (seed, epoch, step), not on the replicas, workers, threads or `start`. Of several
            inputs, the one that is images [N, H, W, C] is augmented.
        map: your own function of a batch, `(x, y) -> (x, y)` in TensorFlow operations; it must treat each example
            independently of the others. Without labels it is `x -> x`, or `x -> (x, y)` to add some. Runs in parallel.
        one_hot: return labels as float32 [B, num_classes]. If `map` makes labels outside the classes, reading them
            raises TensorFlow's InvalidArgumentError, a DataError in a `Loop`.
        cache: run `map` once over the whole split and keep the result in memory, instead of in every epoch.
        drop_remainder: leave out the last batch when it is smaller.
        prefetch: how many batches are made ahead; tf.data chooses by default.

    Raises:
        RecipeError: a batch size that is not positive, or larger than the set with `drop_remainder`; a negative seed;
            weights that are negative, not finite, all 0 or not one for each example or class; more draws without
            replacement than examples with a weight;
            `augment` without images [N, H, W, C], or with several inputs of them; `one_hot` on labels that are not
            class indices.
    """

    split: Split
    _: KW_ONLY
    cache: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        split = self.split
        if not isinstance(split, Split):
            raise RecipeError(
                f"batches needs a split, found {type(split).__name__}. Make one with mk.data.arrays(images, labels), "
                "or take .train or .test of a loaded data set."
            )
        self._take(split, getattr(split.inputs, "shape", None))

    @functools.cached_property
    def host_tensors(self) -> Any:
        """The whole split as tensors in the host's memory, in the form of `Split.as_element`; mapped with `cache`."""
        _require_memory(self.split)
        whole = super().host_tensors
        if self.map is None or not self.cache:
            return whole
        with tf.init_scope(), tf.device("CPU:0"):
            pieces = tf.data.Dataset.from_tensor_slices(whole).batch(self.global_batch_size)
            mapped = list(pieces.map(super()._mapped, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *mapped)

    def _mapped(self, *element: Any) -> tuple[Any, ...]:
        return element if self.cache else super()._mapped(*element)

    def spread(self) -> tf.data.Dataset:
        """One batch, as a dataset of one element, of examples from all over the set, for checks of a model."""
        places = np.linspace(0, len(self.split) - 1, self.global_batch_size, dtype=np.int64)
        element = tf.data.Dataset.from_tensors(pick(self.split.as_element(), places))
        if self.cache:
            element = element.map(super()._mapped)

        def batch(*rows: Any) -> Any:
            return self.finish(rows, epoch=0, step=tf.constant(0, tf.int64))

        return self._made(element, batch)


def _require_memory(split: Split) -> None:
    """Refuse a set of which this machine cannot hold the copy that TensorFlow makes, before pages are read for it."""
    needed = sum(array.nbytes for array in tf.nest.flatten(split.as_element()))
    available = _available_memory()
    if available is not None and needed > available:
        raise DataError(
            f"{split!r} needs {needed / 2**30:,.1f} GiB of memory, and {available / 2**30:,.1f} GiB are available. "
            "Write it to files once, mk.data.write_records(split, folder), and train on mk.data.records(folder, ...), "
            "which holds a few batches in memory; or train on a part of it, split[:100_000]."
        )


def _available_memory() -> int | None:
    """Return how many bytes a process can still get; None where no Linux tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])


batches = Batches  # the verb that users call; one signature and one docstring for both


def _rows(tensor: tf.Tensor, first: tf.Tensor, length: Any) -> tf.Tensor:
    rows = tensor[first : first + tf.cast(length, first.dtype)]
    return tf.ensure_shape(rows, [length if isinstance(length, int) else None, *tensor.shape[1:]])
