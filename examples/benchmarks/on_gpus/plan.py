"""What gpu.py measures: groups of rows, the most telling ones first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.measure import TRAINING, Job
from harness.topology import Topology

FIT = "harness.training:Fit"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

# What one device does, by what else is measured in the same turns; most telling first
SPEED: dict[str, tuple[str, dict[str, Any]]] = {
    "fit": (FIT, {}),
    "Loop": (TRAINING, {}),
    "fit, no XLA": (FIT, {"jit_compile": False}),
    "Loop, no XLA": (TRAINING, {"jit_compile": False}),
    "Step(jit_compile=True)": (TRAINING, {"jit_compile": True}),
    "Loop, streaming": (TRAINING, {"resident": False}),
    "fit, many steps a call": (FIT, {"many_steps": True}),
}
PRECISION: dict[str, tuple[str, dict[str, Any]]] = {
    "fit": (FIT, {}),
    "Loop": (TRAINING, {}),
    "Loop, mixed_bfloat16": (TRAINING, {"policy": "mixed_bfloat16"}),
    "fit, mixed_bfloat16": (FIT, {"policy": "mixed_bfloat16"}),
    "Loop, mixed_float16": (TRAINING, {"policy": "mixed_float16"}),
    "Step(jit_compile=True), mixed_bfloat16": (TRAINING, {"policy": "mixed_bfloat16", "jit_compile": True}),
}


@dataclass(frozen=True)
class PlannedRows:
    """Rows that are measured together.

    Jobs are in order, the most telling ones first: in "scaling" by (scaling, replicas, global batch size), in
    "equivalence" by replicas. For "equivalence" and "all-reduce" their target is a function of on_gpus.processes.
    """

    part: str  # of the report: "one device", "precision", "scaling", "equivalence" or "all-reduce"
    common: Mapping[str, Any]  # what all its rows say
    jobs: Mapping[Any, Job]
    shared: frozenset[int] = frozenset()  # numbers of replicas that share hardware


def set_for(model: str) -> str:
    """The data set that a model of the zoo is trained on here."""
    return "mnist" if model in ("mnist_cnn", "mlp", "linear") else "cifar10"


def plan(
    device: str, gpus: int, models: Sequence[str], sets: Mapping[str, str], global_batch_size: int
) -> list[PlannedRows]:
    """Return the groups, the most telling ones first; `sets` holds the file of each data set.

    The global batch size is that of one device and of strong scaling; in weak scaling, of one replica.
    """
    real = device == "gpu"
    whole, parts = ("GPUs", "logical GPUs") if real else ("CPU as GPUs", "CPU as logical GPUs")
    job = partial(Job, environment={} if real else NO_GPU)
    one = Topology.of(device, 1)
    of_parts = {n: Topology("mirrored", device, n, logical=real) for n in (2, 4)}
    of_gpus = {n: Topology.of(device, n) for n in (16, 8, 4, 2) if n <= gpus}
    largest = dict(list(of_gpus.items())[:1])

    def training(
        model: str, layout: Topology, *, size: int = global_batch_size, target: str = TRAINING, **options: Any
    ) -> Job:
        work = {"model": model, "data": sets[set_for(model)], "global_batch_size": size}
        return job(target, layout, {**work, **options})

    def of_one(part: str, model: str, contenders: Mapping[str, tuple[str, dict[str, Any]]]) -> PlannedRows:
        jobs = {name: training(model, one, target=target, **options) for name, (target, options) in contenders.items()}
        return PlannedRows(part, {"model": model}, jobs)

    def equivalence(on: str, layouts: Mapping[int, Topology]) -> PlannedRows:
        return PlannedRows("equivalence", {"on": on}, {n: job("closeness", layout) for n, layout in layouts.items()})

    def scaling(model: str, on: str, layouts: Mapping[int, Topology]) -> PlannedRows:
        jobs = {("baseline", 1, global_batch_size): training(model, one)}
        for n, layout in layouts.items():
            jobs["strong", n, global_batch_size] = training(model, layout)
            if on == whole:
                jobs["weak", n, n * global_batch_size] = training(model, layout, size=n * global_batch_size)
        return PlannedRows("scaling", {"model": model, "on": on}, jobs, frozenset(() if on == "GPUs" else layouts))

    groups = [of_one("one device", models[0], SPEED), equivalence(parts, of_parts)]
    if largest:
        groups += [scaling(models[-1], whole, of_gpus), equivalence(whole, largest)]
    groups += [of_one("one device", model, SPEED) for model in models[1:]]
    groups.append(of_one("precision", models[-1], PRECISION))
    for layout in largest.values():
        work = {"sizes": [4**i * 1024 for i in (2, 5, 8)], "repeats": 3}
        groups.append(PlannedRows("all-reduce", {}, {"all": job("all_reduces", layout, work)}))
    groups += [scaling(model, parts, of_parts) for model in reversed(models)]
    groups += [of_one("precision", model, PRECISION) for model in models[:-1]]
    return groups + [scaling(model, whole, of_gpus) for model in models[:-1] if largest]
