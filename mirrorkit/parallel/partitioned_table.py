"""A table of vectors that one parameter server cannot hold, split by rows over all of them.

Keras's own Embedding cannot be split. This table is not part of the model: a step looks rows up, and adds to them.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mirrorkit._types import TensorLike
from mirrorkit.arguments import whole_number
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name, is_parameter_server, task_addresses

_LEAST_BYTES = 256 * 2**10  # of a shard; smaller ones cost more in messages than they save in memory


class PartitionedTable:
    """A table of vectors [rows, width]. Each shard of rows is a `tf.Variable` on its own parameter server.

    ```python
    table = mk.parallel.PartitionedTable(strategy, rows=50_000_000, width=64)
    vectors = table.lookup(ids)                  # in a step's compute, on the worker
    table.add(ids, -learning_rate * gradient)    # of the loss with respect to these vectors
    ```

    Only the named rows are sent. Workers that add to the same row at the same moment may lose one of the two additions
    (Recht et al. 2011, arXiv:1106.5730); other rows are not affected. Add `table.variables` to a step's `variables`, so
    that checkpoints hold them.

    Args:
        strategy: a ParameterServerStrategy, or a strategy of one device (then there is one shard).
        rows, width: the size of the table.
        shards: the number of shards; by default one on each parameter server, fewer for a small table.
        initializer: `(shape, dtype) -> values` for one shard; uniform between -0.05 and 0.05 by default.
        dtype: of the vectors.
        name: of the variables.

    Raises:
        StepError: sizes that are not positive, more shards than rows, a strategy that copies variables to each replica.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        rows: int,
        width: int,
        shards: int | None = None,
        initializer: Callable[..., TensorLike] | None = None,
        dtype: tf.DType | str = tf.float32,
        name: str = "table",
    ) -> None:
        rows, width = whole_number("rows", rows, StepError), whole_number("width", width, StepError)
        if not is_parameter_server(strategy) and strategy.num_replicas_in_sync > 1:
            raise StepError(
                f"{class_name(strategy)} keeps a copy of every variable on each replica, so a table cut into shards "
                "would save no memory. Use 'parameter_server', or keras.layers.Embedding."
            )
        if shards is None:
            shards = _shards(strategy, rows, width, tf.as_dtype(dtype))
        whole_number("shards", shards, StepError, most=rows)
        make = initializer or (lambda shape, dtype: tf.random.uniform(shape, -0.05, 0.05, dtype))
        # the sizes that tf.nn.embedding_lookup expects: the first ones have a row more
        sizes = [rows // shards + (shard < rows % shards) for shard in range(shards)]
        with strategy.scope():
            self.variables = [
                tf.Variable(lambda size=size: make([size, width], dtype), name=f"{name}_{i}", trainable=False)
                for i, size in enumerate(sizes)
            ]
        self._firsts = [sum(sizes[:i]) for i in range(shards)]

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the rows of these ids (integers of any shape): [..., width]."""
        return tf.nn.embedding_lookup(self.variables, ids)

    def add(self, ids: tf.Tensor, values: tf.Tensor) -> None:
        """Add values [..., width] to the rows of these ids; an id that occurs twice gets both.

        Raises:
            tf.errors.InvalidArgumentError: an id below 0, or as large as the number of rows; on a CPU.
        """
        flat = tf.reshape(tf.cast(ids, tf.int64), [-1])
        rows = tf.reshape(values, [-1, self.variables[0].shape[1]])
        # An id below 0 goes to the first shard, one above all to the last: these refuse it.
        shard = tf.searchsorted(tf.constant(self._firsts[1:], tf.int64), flat, side="right")
        for i, variable in enumerate(self.variables):
            mine = tf.where(shard == i)[:, 0]
            variable.scatter_add(tf.IndexedSlices(tf.gather(rows, mine), tf.gather(flat, mine) - self._firsts[i]))


def _shards(strategy: tf.distribute.Strategy, rows: int, width: int, dtype: tf.DType) -> int:
    if not is_parameter_server(strategy):
        return 1
    servers = len(task_addresses(strategy, "ps"))
    cut = tf.distribute.experimental.partitioners.MinSizePartitioner(_LEAST_BYTES, max_shards=servers)
    return int(cut(tf.TensorShape([rows, width]), dtype)[0])
