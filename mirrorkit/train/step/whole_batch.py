"""What the loss of an example may depend on: that example alone, or all examples of the global batch."""

from __future__ import annotations

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.step.options import Options


def refused(shards: int) -> Gather:
    """Return what `mk.train.all_gather` does where each of so many shards is computed by itself."""

    def gather(rows: Nest) -> Nest:
        if shards > 1:
            raise StepError(
                "mk.train.all_gather was called in a step that computes on each shard of a batch alone, where the rows "
                "of other shards are not available. Write a step whose loss is over the whole batch: "
                "mk.train.Step.from_loss(models, optimizer, loss_fn, whole_batch=True), without accumulate; or call it "
                "in `compute` of a step of your own."
            )
        return rows

    return gather


def check(options: Options, replicas: int) -> None:
    """Refuse `accumulate`, and `jit_compile` on several replicas, with a loss over the whole batch."""
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
