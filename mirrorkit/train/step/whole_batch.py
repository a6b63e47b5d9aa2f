"""What the loss of an example may depend on: that example alone, or all examples of the global batch."""

from __future__ import annotations

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.reduce.gathering import Gather, rows_of_all
from mirrorkit.train.step.options import Options


class EachExample:
    """The loss of an example depends on that example alone, so a shard is computed by itself.

    Args:
        shards: into how many one update's examples are cut.
    """

    is_whole = False
    communicates = False  # whether replicas do within a pass

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def gather(self, rows: Nest) -> Nest:
        """Do what `mk.train.all_gather` does in a trace that is the same for every shard."""
        if self._shards > 1:
            raise StepError(
                "mk.train.all_gather was called in a step that computes on each shard of a batch alone, where the rows "
                "of other shards are not available. Write a step whose loss is over the whole batch: "
                "mk.train.Step.from_loss(models, optimizer, loss_fn, whole_batch=True), without accumulate; or call it "
                "in `compute` of a step of your own."
            )
        return rows

    @property
    def gather_within(self) -> Gather:
        """What `mk.train.all_gather` does in a pass over a shard."""
        return self.gather


class WholeBatch(EachExample):
    """The loss of an example may depend on all examples: each replica computes its own rows and gathers the others'."""

    is_whole = True

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.communicates = shards > 1

    @staticmethod
    def check(options: Options, replicas: int) -> None:
        """Refuse `accumulate`, and `jit_compile` on several replicas."""
        if options.accumulate > 1:
            raise StepError(
                f"whole_batch=True and accumulate={options.accumulate} exclude each other: a loss over the whole batch "
                f"sees the examples of one batch at a time, and {options.accumulate} batches are not one large batch "
                "to it. Take larger global batches, on more replicas or with a smaller model."
            )
        if options.jit_compile is True and replicas > 1:
            raise StepError(
                f"whole_batch=True and jit_compile=True exclude each other on {replicas} replicas: XLA compiles what a "
                "replica computes by itself, but this step gathers the rows of all replicas. Leave out jit_compile."
            )

    def gather(self, rows: Nest) -> Nest:
        """Return the rows of all replicas."""
        return rows_of_all(rows)

    @property
    def gather_within(self) -> Gather:
        """See `EachExample`; what gathers is set around the call of a pass, which is traced on each replica."""
        return ambient.gather or rows_of_all
