"""Data of the user's own, of which each worker makes its part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf

from mirrorkit.arguments import whole_number
from mirrorkit.data.nests import of_user
from mirrorkit.data.recipe import Recipe
from mirrorkit.errors import RecipeError


@dataclass(frozen=True, eq=False)
class FromFunction(Recipe):
    """A recipe for your own data: a function makes each worker's dataset, from its part of the data.

    `mk.data.from_function` is this class.

    ```python
    def frames(shard, num_shards, epoch):
        files = tf.data.Dataset.list_files("frames/*", shuffle=False).shard(num_shards, shard)
        dataset = files.shuffle(1000, seed=epoch).map(read, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.batch(256 // num_shards, drop_remainder=True)

    train = mk.data.from_function(frames, global_batch_size=256, steps_per_epoch=500)
    ```

    This is `tf.distribute.Strategy.distribute_datasets_from_function` for `mk.train.Loop`. A global batch joins the
    batches of all workers in their order, so it depends on the number of workers. A checkpoint made within an epoch
    resumes on the same number of workers; one made at the end of an epoch resumes on any number. Before the first step
    of a fit, the workers compare their first batches and their numbers of batches.

    Args:
        function: `(shard, num_shards)`, or `(shard, num_shards, epoch)`, to a `tf.data.Dataset` of batches of
            `global_batch_size / num_shards` examples each, `(x, y)` or `(x, y, sample_weight)`. Shard 0 of 1 is all of
            the data. It is called once for every epoch.
        global_batch_size: examples per step over all workers together.
        steps_per_epoch: batches of an epoch, which every shard must have; required if the dataset does not know its
            length.

    Raises:
        RecipeError: a function that returns something else, or batches of another size; an unknown number of batches.
    """

    function: Callable[..., tf.data.Dataset]
    global_batch_size: int = field(kw_only=True)
    steps_per_epoch: int = field(default=None, kw_only=True)  # type: ignore[assignment]  # a number, once made

    reads_own_rows = True
    order_depends_on_workers = True
    drop_remainder = True

    def __post_init__(self) -> None:
        """Check the arguments, and the dataset of one shard alone."""
        whole_number("global_batch_size", self.global_batch_size, RecipeError)
        if self.steps_per_epoch is not None:
            whole_number("steps_per_epoch", self.steps_per_epoch, RecipeError)
        whole = self._made(0, 1, 0)
        steps = self.steps_per_epoch or int(whole.cardinality())
        if steps < 1:
            raise RecipeError(
                "from_function needs the number of batches in an epoch, and the dataset does not know it. Pass "
                "steps_per_epoch=, or set it: dataset.apply(tf.data.experimental.assert_cardinality(500))."
            )
        self._set(steps_per_epoch=steps, element_spec=whole.element_spec)

    @property
    def num_examples(self) -> int:
        """The number of examples that an epoch uses."""
        return self.steps_per_epoch * self.global_batch_size

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The batches `start`, `start + 1`, ... of `epoch`, with `input_context` of this worker's shard alone.

        Raises:
            RecipeError: a position outside the epoch; a batch that the workers' replicas cannot share equally; a shard
                of fewer batches, where it says how many it has.
        """
        self._check_position(epoch, start)
        shard, shards = 0, 1
        if input_context is not None:
            shard, shards = input_context.input_pipeline_id, input_context.num_input_pipelines
            if self.global_batch_size % (replicas := input_context.num_replicas_in_sync):
                raise RecipeError(
                    f"from_function(global_batch_size={self.global_batch_size}) cannot be shared equally by {replicas} "
                    f"replicas on {shards} workers. Use a multiple of {replicas}."
                )
        made = self._made(shard, shards, epoch)
        found = int(made.cardinality())
        if 0 <= found < self.steps_per_epoch:
            raise RecipeError(
                f"Shard {shard} of {shards} has {found} batches; an epoch takes {self.steps_per_epoch} from each "
                "shard. Pass steps_per_epoch= with the smallest number of any shard."
            )
        return made.skip(start).take(self.steps_per_epoch - start)

    def _made(self, shard: int, shards: int, epoch: int) -> tf.data.Dataset:
        takes_epoch = "epoch" in inspect.signature(self.function).parameters
        made = self.function(shard, shards, **({"epoch": epoch} if takes_epoch else {}))
        if not isinstance(made, tf.data.Dataset):
            raise RecipeError(
                f"The function of from_function must return a tf.data.Dataset; it returned {type(made).__name__}."
            )
        made = of_user(made)
        wanted = self.global_batch_size // shards
        for spec in tf.nest.flatten(made.element_spec):
            if spec.shape.rank == 0 or spec.shape[0] not in (None, wanted):
                raise RecipeError(
                    f"For shard {shard} of {shards} the function of from_function must return batches of {wanted} "
                    f"examples, global_batch_size={self.global_batch_size} / {shards}; found {made.element_spec}. "
                    "Batch its dataset: .batch(global_batch_size // num_shards, drop_remainder=True)."
                )
        return made


from_function = FromFunction
