"""Hand a data set to a strategy, with the sharding policy said aloud."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit.data.recipe import Recipe
from mirrorkit.errors import DataError

_POLICIES = {
    "auto": tf.data.experimental.AutoShardPolicy.AUTO,
    "data": tf.data.experimental.AutoShardPolicy.DATA,
    "file": tf.data.experimental.AutoShardPolicy.FILE,
    "off": tf.data.experimental.AutoShardPolicy.OFF,
}


def distribute(
    dataset: tf.data.Dataset | Recipe, strategy: tf.distribute.Strategy, *, autoshard: str = "auto"
) -> tf.distribute.DistributedDataset:
    """Share each global batch among the replicas of a strategy.

    ```python
    for batch in mk.data.distribute(train.dataset(epoch=0), strategy, autoshard="data"):
        strategy.run(step_fn, args=(batch,))
    ```

    Source: https://www.tensorflow.org/tutorials/distribute/input

    Args:
        dataset: global batches; a recipe stands for its first epoch.
        strategy: any `tf.distribute.Strategy`.
        autoshard: how the workers of a cluster divide the data (one worker has nothing to divide).
            "data": every worker reads everything and keeps its part.
            "file": every worker reads its own files; there must be at least one per worker. Start such an epoch at
            `start=0`: the skipped batches would be counted from each worker's own files.
            "auto": "file" where the data comes from files, else "data".
            "off": every worker gets everything.

    Returns:
        An iterable of per-replica values, as `strategy.experimental_distribute_dataset` gives it.

    Raises:
        DataError: an unknown policy, or something that is no data set.
    """
    if autoshard not in _POLICIES:
        raise DataError(f"autoshard={autoshard!r} was asked for; there are {', '.join(map(repr, _POLICIES))}.")
    if isinstance(dataset, Recipe):
        dataset = dataset.dataset()
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(f"distribute needs a tf.data.Dataset or a recipe, found {type(dataset).__name__}.")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _POLICIES[autoshard]
    return strategy.experimental_distribute_dataset(dataset.with_options(options))
