"""Distribute batches among the replicas of a strategy, with an explicit sharding policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.arguments import checks_arguments
from mirrorkit.batching import per_replica_sizes
from mirrorkit.data.nests import dataset_without_none
from mirrorkit.data.recipe import Recipe
from mirrorkit.data.tfrecords import Records
from mirrorkit.errors import RecipeError
from mirrorkit.strategy import input_context, num_workers

_POLICIES = {name: tf.data.experimental.AutoShardPolicy[name.upper()] for name in ("auto", "data", "file", "off")}


@checks_arguments(RecipeError)
def distribute(
    dataset: tf.data.Dataset | Recipe,
    strategy: tf.distribute.Strategy,
    *,
    autoshard: str = "auto",
    epoch: int = 0,
    start: int = 0,
) -> LocalBatches | tf.distribute.DistributedDataset:
    """Share each global batch among the replicas of a strategy.

    ```python
    for batch in mk.data.distribute(train, strategy, epoch=3):
        strategy.run(step_fn, args=(batch,))
    ```

    Source: https://www.tensorflow.org/tutorials/distribute/input

    Args:
        dataset: a dataset of global batches, or a recipe.
        strategy: any `tf.distribute.Strategy`.
        autoshard: how the workers of a cluster divide the data (one worker has nothing to divide).
            "auto": with a recipe, every worker reads only its own rows of each global batch. With a
            `tf.data.Dataset`, it means "file" if TensorFlow finds the dataset's files, else "data".
            "data": every worker reads whole global batches and keeps its rows.
            "file": every worker reads its own files; there must be at least one per worker. With `mk.data.records`,
            it means "auto". For a `tf.data.Dataset`, TensorFlow divides the files: batches differ from one worker's.
            "off": every worker gets everything.
        epoch, start: for a recipe, the epoch and its first batch.

    Returns:
        An iterable of per-replica values with an `element_spec`. To iterate inside a `tf.function`, use
        `strategy.experimental_distribute_dataset`, or `mk.train.Loop`, which takes many steps per call.

    Raises:
        RecipeError: an unknown policy; "file" for `mk.data.records` of fewer
            files than workers, or for a dataset that such a recipe made.
    """
    if autoshard not in _POLICIES:
        raise RecipeError(f"autoshard={autoshard!r} was asked for; choose from {', '.join(map(repr, _POLICIES))}.")
    if autoshard == "file" and isinstance(dataset, Records) and len(dataset.files) < num_workers(strategy):
        raise RecipeError(
            f"autoshard='file' was asked for, but the set has {len(dataset.files)} files for {num_workers(strategy)} "
            "workers. Use 'auto', where every worker reads its own rows of each batch, or write more files."
        )
    if isinstance(dataset, Recipe):
        if autoshard in ("auto", "file"):
            if dataset.reads_own_rows and (context := input_context(strategy)) is not None:
                rows = dataset.dataset(epoch, start, input_context=context)
                return LocalBatches(rows, strategy, sizes=list(dataset.batch_sizes())[start:])
            autoshard = "data"
        dataset = dataset.dataset(epoch, start)
    elif epoch or start:
        raise RecipeError(
            f"distribute(epoch={epoch}, start={start}) was asked for, but these are for recipes. Pass the recipe, or "
            "only recipe.dataset(epoch, start)."
        )
    dataset = dataset_without_none(dataset)
    # A recipe set it, or the user.
    if dataset.options().experimental_distribute.auto_shard_policy == _POLICIES["data"]:
        if autoshard == "file":
            raise RecipeError(
                "autoshard='file' was asked for, but the dataset says that its files must not be divided. Give "
                "distribute the recipe itself, or use 'data'."
            )
        autoshard = "data" if autoshard == "auto" else autoshard
    by_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and autoshard != "data"
    if by_worker or isinstance(strategy, tf.distribute.TPUStrategy):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _POLICIES[autoshard]
        return strategy.experimental_distribute_dataset(dataset.with_options(options))
    return LocalBatches(dataset, strategy)


class LocalBatches:
    """Global batches cut into rows for the replicas of this process, in the order of the replicas.

    TensorFlow's own distributed iterator runs a tuning thread on every device, which can hold up the end of an epoch
    for many seconds, and several workers ask each other before every batch whether there is one. Here one iterator on
    the host serves all replicas of a worker, and workers that read the same data need not ask.

    Args:
        dataset: global batches, or with `sizes` this worker's rows of them.
        strategy: its replicas get them.
        sizes: of the global batches.
    """

    def __init__(
        self, dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, sizes: Sequence[int] | None = None
    ) -> None:
        self._dataset = untuned(dataset)
        self._strategy = strategy
        self._sizes = sizes

    @property
    def element_spec(self) -> Any:
        """What `tf.function.get_concrete_function` needs to trace a step before its first batch."""
        return self._strategy.experimental_distribute_dataset(self._dataset).element_spec

    def __iter__(self) -> Iterator[Any]:
        """Yield a per-replica value for each global batch."""
        replicas, context = self._strategy.num_replicas_in_sync, input_context(self._strategy)
        for batch, size in zip(self._dataset, self._sizes or itertools.repeat(None), strict=False):
            if replicas == 1:
                yield batch
                continue
            found = int(tf.nest.flatten(batch)[0].shape[0])
            sizes = per_replica_sizes(size or found, replicas)
            first = 0
            if size is not None and context is not None and found < size:  # this worker's rows alone
                here = replicas // context.num_input_pipelines
                first = context.input_pipeline_id * here
                sizes = sizes[first : first + here]
            shares = _shares(batch, sizes)
            yield self._strategy.experimental_distribute_values_from_function(
                lambda context, shares=shares, first=first: shares[context.replica_id_in_sync_group - first]
            )


def _shares(batch: Any, sizes: tuple[int, ...]) -> list[Any]:
    columns = [tf.split(tensor, sizes) for tensor in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, list(share)) for share in zip(*columns, strict=True)]


def uncopied(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Keep tf.data from rewriting a pipeline, which would copy all tensors that it refers to, such as a whole set."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turn off tf.data's tuning thread, which can hold up the end of an epoch, unless `dataset` asks for it."""
    options = tf.data.Options()
    if dataset.options().autotune.enabled is None:
        options.autotune.enabled = False
    return dataset.with_options(options)
