"""What must not break unnoticed: each mechanism of the package, how to break it, and fast tests that are red then.

`python tests/mutations.py FILE --by-hand` breaks one at a time, in a copy. tests/equivalence/test_every_row.py has
those behind each row of the equivalence table.
"""

from __future__ import annotations

from typing import NamedTuple


class Mechanism(NamedTuple):
    """A text of a file of the package that is there once, and what takes its place."""

    name: str
    file: str
    old: str
    new: str
    test: str  # a file, all of whose slow tests are left out


MECHANISMS = (
    Mechanism(
        "the sums of all replicas are added up",
        "mirrorkit/train/reduce/reduction.py",
        "context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(message))",
        "tf.identity(message)",
        "tests/train/reduce/test_transforms.py",
    ),
    Mechanism(
        "the last rows of a batch that the replicas do not divide",
        "mirrorkit/data/worker_rows.py",
        "largest = -(-size // replicas)",
        "largest = size // replicas",
        "tests/train/step/test_global_batch.py",
    ),
    Mechanism(
        "each worker reads the rows of its own replicas",
        "mirrorkit/data/worker_rows.py",
        "first = context.input_pipeline_id * here",
        "first = 0",
        "tests/data/test_recipe.py",
    ),
    Mechanism(
        "the order of the examples follows from the seed",
        "mirrorkit/data/preparation.py",
        "key=[self.seed, epoch]",
        "key=[0, epoch]",
        "tests/data/test_recipe.py",
    ),
    Mechanism(
        "a checkpoint gets its name when it is whole",
        "mirrorkit/train/checkpoints/folder.py",
        "os.replace(unfinished, path)",
        "path.write_bytes(unfinished.read_bytes())",
        "tests/train/checkpoints/test_checkpoint_file.py",
    ),
    Mechanism(
        "a resumed epoch goes on behind the batches that are done",
        "mirrorkit/train/loop/fit.py",
        "start=position.batch",
        "start=0",
        "tests/train/checkpoints/test_resume.py",
    ),
    Mechanism(
        "a call of several steps ends where a callback wants it to",
        "mirrorkit/train/loop/fit.py",
        "until = period - done % period",
        "until = steps",
        "tests/train/checkpoints/test_resume.py",
    ),
    Mechanism(
        "callbacks are told of every batch",
        "mirrorkit/train/loop/fit.py",
        "self.hooks.on_train_batch_begin(position.batch)",
        "pass",
        "tests/train/loop/test_batch_hooks.py",
    ),
    Mechanism(
        "the mean gradient is clipped by the norm of all gradients",
        "mirrorkit/train/reduce/transforms.py",
        "tf.clip_by_global_norm(gradients, self.norm)",
        "(gradients, None)",
        "tests/train/reduce/test_transforms.py",
    ),
    Mechanism(
        "moving averages of the weights",
        "mirrorkit/train/step/averages.py",
        "tf.where(iterations == 0, 0.0, self._decay)",
        "tf.constant(0.0)",
        "tests/train/step/test_averages.py",
    ),
    Mechanism(
        "a loss scale halves after an overflow",
        "mirrorkit/train/step/loss_scale.py",
        "scale / 2)",
        "scale)",
        "tests/train/step/test_loss_scale.py",
    ),
    Mechanism(
        "the parts of an update are added up",
        "mirrorkit/train/step/devices.py",
        "tf.nest.map_structure(tf.add, sums, more)",
        "more",
        "tests/train/step/test_global_batch.py",
    ),
    Mechanism(
        "replicas that have drifted apart are found",
        "mirrorkit/checks/sync.py",
        "(sums != sums[0]).any(axis=0)",
        "[]",
        "tests/checks/test_sync_callback.py",
    ),
    Mechanism(
        "a model that is another one on parts of a batch is refused",
        "mirrorkit/train/first_batch/check.py",
        "return is_cut and not is_left_out",
        "return False",
        "tests/train/first_batch/test_parts_use.py",
    ),
    Mechanism(
        "synchronized BatchNormalization sees the rows of all replicas",
        "mirrorkit/train/keras_model/layer_state.py",
        "self.synchronized = any(",
        "self.synchronized = False and any(",
        "tests/train/step/test_synchronized.py",
    ),
    Mechanism(
        "each replica draws its own numbers",
        "mirrorkit/train/step/clock.py",
        "shard = tf.cast(context.replica_id_in_sync_group, tf.int64)",
        "shard = tf.constant(0, tf.int64)",
        "tests/train/keras_model/test_layer_state.py",
    ),
    Mechanism(
        "each step draws its own numbers",
        "mirrorkit/train/step/clock.py",
        "count = start.count + tf.cast(index, tf.int64)",
        "count = start.count",
        "tests/train/step/test_clock.py",
    ),
    Mechanism(
        "a label that is no class is named",
        "mirrorkit/train/calls/data_errors.py",
        "if found := _LABEL.search(message):",
        "if found := None:",
        "tests/train/calls/test_data_errors.py",
    ),
    Mechanism(
        "when a worker fails the launcher ends the others",
        "mirrorkit/launch/job.py",
        "self._send(signal.SIGTERM, grace)",
        "pass",
        "tests/launch/test_launcher.py",
    ),
    Mechanism(
        "TF_CONFIG tells each task which one it is",
        "mirrorkit/cluster/cluster.py",
        "task_index=index",
        "task_index=0",
        "tests/launch/test_layout.py",
    ),
    Mechanism(
        "a damaged image is an error that names the file",
        "mirrorkit/data/image_decoding.py",
        "raise _undecodable(path.decode(), reason(error)) from None",
        "pass",
        "tests/data/test_image_decoding.py",
    ),
    Mechanism(
        "the index knows where a record begins",
        "mirrorkit/data/record_reading.py",
        "begin, end = int(offsets[first]),",
        "begin, end = 0,",
        "tests/data/test_record_index.py",
    ),
    Mechanism(
        "a private name that training needs and that is gone is an error",
        "mirrorkit/private.py",
        "if row in NEEDS:",
        "if False:",
        "tests/test_private.py",
    ),
)
