"""Distribute batches among the replicas of a strategy, with an explicit sharding policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from mirrorkit.batching import per_replica_sizes
from mirrorkit.data.recipe import Recipe
from mirrorkit.data.tfrecords import Records
from mirrorkit.errors import RecipeError
from mirrorkit.strategy import num_workers

_POLICIES = {name: tf.data.experimental.AutoShardPolicy[name.upper()] for name in ("auto", "data", "file", "off")}


def distribute(
    dataset: tf.data.Dataset | Recipe, strategy: tf.distribute.Strategy, *, autoshard: str = "auto"
) -> LocalBatches | tf.distribute.DistributedDataset:
    """Share each global batch among the replicas of a strategy.

    ```python
    for batch in mk.data.distribute(train.dataset(epoch=0), strategy, autoshard="data"):
        strategy.run(step_fn, args=(batch,))
    ```

    Source: https://www.tensorflow.org/tutorials/distribute/input

    Args:
        dataset: global batches, or a recipe, of which its first epoch is taken.
        strategy: any `tf.distribute.Strategy`.
        autoshard: how the workers of a cluster divide the data (one worker has nothing to divide).
            "data": every worker reads everything and keeps its part.
            "file": every worker reads its own files; there must be at least one per worker. Start such an epoch at
            `start=0`: the skipped batches would be counted from each worker's own files.
            "auto": "file" where the data comes from files, else "data"; "data" too for `mk.data.records` of fewer files
            than workers. A `tf.data.Dataset` of fewer files is refused by TensorFlow when it is iterated.
            "off": every worker gets everything.

    Returns:
        An iterable of per-replica values with an `element_spec`. To iterate inside a `tf.function`, use
        `strategy.experimental_distribute_dataset`, or `mk.train.Loop`, which takes many steps per call.

    Raises:
        RecipeError: an unknown policy, or something that is not a data set; "file" for `mk.data.records` of fewer
            files than workers.
    """
    if autoshard not in _POLICIES:
        raise RecipeError(f"autoshard={autoshard!r} was asked for; there are {', '.join(map(repr, _POLICIES))}.")
    if isinstance(dataset, Records) and len(dataset.files) < (workers := num_workers(strategy)):
        if autoshard == "file":
            raise RecipeError(
                f"autoshard='file' was asked for, but the set has {len(dataset.files)} files for {workers} workers. "
                "Use 'data', where every worker reads all files and keeps its rows, or write more files."
            )
        autoshard = "data" if autoshard == "auto" else autoshard
    if isinstance(dataset, Recipe):
        dataset = dataset.dataset()
    if not isinstance(dataset, tf.data.Dataset):
        raise RecipeError(f"distribute needs a tf.data.Dataset or a recipe, found {type(dataset).__name__}.")
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
    """

    def __init__(self, dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
        self._dataset = untuned(dataset)
        self._strategy = strategy

    @property
    def element_spec(self) -> Any:
        """What `tf.function.get_concrete_function` needs to trace a step before its first batch."""
        return self._strategy.experimental_distribute_dataset(self._dataset).element_spec

    def __iter__(self) -> Iterator[Any]:
        """Yield a per-replica value for each global batch."""
        replicas = self._strategy.num_replicas_in_sync
        for batch in self._dataset:
            if replicas == 1:
                yield batch
                continue
            sizes = per_replica_sizes(int(tf.nest.flatten(batch)[0].shape[0]), replicas)
            shares = _shares(batch, sizes)
            yield self._strategy.experimental_distribute_values_from_function(
                lambda context, shares=shares: shares[context.replica_id_in_sync_group]
            )


def _shares(batch: Any, sizes: tuple[int, ...]) -> list[Any]:
    columns = [tf.split(tensor, sizes) for tensor in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, list(share)) for share in zip(*columns, strict=True)]


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turn off tf.data's tuning thread, which can hold up the end of an epoch, unless `dataset` asks for it."""
    options = tf.data.Options()
    if dataset.options().autotune.enabled is None:
        options.autotune.enabled = False
    return dataset.with_options(options)
