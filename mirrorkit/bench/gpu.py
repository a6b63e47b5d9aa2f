"""All that is to be known of a machine with GPUs, in one run of limited time, the most telling figures first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirrorkit.bench.chart import Chart
from mirrorkit.bench.layout import DEVICES, Layout, for_scaling
from mirrorkit.bench.machine import in_a_line
from mirrorkit.bench.measure import LEFT_OUT, Budget, Job, Measured, about_with_gpus, train_within
from mirrorkit.bench.remote import Member, Remote
from mirrorkit.bench.report import Column, Report, summary, table
from mirrorkit.bench.scaling import compare
from mirrorkit.errors import DeviceError, MirrorkitError
from mirrorkit.whole import is_whole

LOOP, FIT = "mirrorkit.bench.training:Training", "mirrorkit.bench.training:Fit"
_PROCESSES = "mirrorkit.bench.gpu_processes"
CLOSENESS, COLLECTIVES = f"{_PROCESSES}:Closeness", f"{_PROCESSES}:Collectives"
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
NOTES = (
    "fit is Keras's own, without a strategy, on one dataset for all epochs; its default, jit_compile='auto', turns XLA "
    "on where there is a GPU. In float32, a GPU that has TF32 rounds to it in convolutions and products.",
    "Logical GPUs are parts of one GPU: they show what replicas cost (overhead), not how they scale.",
)
REHEARSAL = "A rehearsal on virtual CPU devices, on very little work: its speeds say nothing, of CPUs or of GPUs."

# What one device does, by what else is measured in the same turns; most telling first
SPEED: dict[str, tuple[str, dict[str, Any]]] = {
    "fit": (FIT, {}),
    "Loop": (LOOP, {}),
    "fit, no XLA": (FIT, {"jit_compile": False}),
    "Step(jit_compile=True)": (LOOP, {"jit_compile": "step"}),
    "Loop(jit_compile=True)": (LOOP, {"jit_compile": "loop"}),
    "Loop, streaming": (LOOP, {"resident": False}),
    "fit, many steps a call": (FIT, {"many_steps": True}),
}
PRECISION: dict[str, tuple[str, dict[str, Any]]] = {
    "fit": (FIT, {}),
    "Loop": (LOOP, {}),
    "Loop, mixed_bfloat16": (LOOP, {"policy": "mixed_bfloat16"}),
    "fit, mixed_bfloat16": (FIT, {"policy": "mixed_bfloat16"}),
    "Loop, mixed_float16": (LOOP, {"policy": "mixed_float16"}),
    "Step(jit_compile=True), mixed_bfloat16": (LOOP, {"policy": "mixed_bfloat16", "jit_compile": "step"}),
}

_FIGURES = (
    *(Column("median", "examples/s", ",.0f"), Column("best", "best", ",.0f")),
    *(Column("n", "n", "d"), Column("spread", "spread", ".0%")),
)
_OF_FIT = (
    *(Column("model", "model"), Column("what", "what"), *_FIGURES, Column("xla", "XLA")),
    *(Column("to_fit", "to fit", ".2f"), Column("to_fit_no_xla", "to fit, no XLA", ".2f")),
)
_COLUMNS: dict[str, Sequence[Column]] = {
    "one device": _OF_FIT,
    "precision": _OF_FIT[:-1],
    "scaling": (
        *(Column("model", "model"), Column("on", "on"), Column("scaling", "scaling")),
        *(Column("replicas", "replicas", "d"), Column("global_batch_size", "global batch", "d"), *_FIGURES),
        *(Column("speedup", "speed-up", ".2f"), Column("efficiency", "efficiency", ".0%")),
        Column("overhead", "overhead", ".1%"),
    ),
    "equivalence": (
        *(Column("on", "on"), Column("replicas", "replicas", "d"), Column("tf32", "TF32"), Column("n", "steps", "d")),
        *(Column("difference", "difference", ".1e"), Column("control", "rounding alone", ".1e")),
        *(Column("within", "within 3 times that"), Column("copies_agree", "copies agree")),
    ),
    "all-reduce": (
        *(Column("implementation", "implementation"), Column("replicas", "replicas", "d")),
        *(Column("bytes", "bytes", ",d"), Column("microseconds", "us", ",.0f"), Column("median", "GB/s", ".2f")),
        *(Column("n", "n", "d"), Column("spread", "spread", ".0%"), Column("bus", "GB/s of each link", ".2f")),
    ),
}


@dataclass(frozen=True)
class Group:
    """Rows that are measured together.

    Attributes:
        part: of the report: a key of _COLUMNS.
        common: what all its rows say.
        jobs: processes by name, the most telling first; in scaling by (scaling, replicas, global batch size).
        shared: numbers of replicas that share hardware.
    """

    part: str
    common: Mapping[str, Any]
    jobs: Mapping[Any, Job]
    shared: frozenset[int] = frozenset()


class GpuReport(Report):
    """A report with a table for each part."""

    def __str__(self) -> str:
        """The title, the machine, what was verified, the tables and the notes."""
        lines = [self.title, in_a_line(self.about), self.about["verified"]]
        for part in dict.fromkeys(row["part"] for row in self.rows):
            rows = [row for row in self.rows if row["part"] == part]
            lines += ["", part, table(_COLUMNS[part], rows)]
        return "\n".join([*lines, "", *self.notes])


def gpu(
    *,
    minutes: float = 20.0,
    device: str = "gpu",
    models: Sequence[str] = ("mnist_cnn", "resnet20"),
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    batch_size: int | None = None,
    repeats: int | None = None,
    each: Callable[[Report], Any] | None = None,
) -> Report:
    """Measure a machine with one GPU or several within `minutes`: speed, precision, scaling, equivalence, all-reduce.

    All devices are verified first. One GPU: `Loop` against Keras's `fit`, with XLA and without, resident and streaming
    data, float32 and mixed precision. It is split into 2 and 4 logical GPUs too. Several GPUs: strong and weak scaling,
    and their all-reduces. N against one: how far the weights are apart after 20 steps. Everything lives in processes of
    its own; speeds are taken in turns. What fails, or finds no time left, is a row with an error.

    Args:
        minutes: for all; each group of rows gets its share, and what it leaves goes to the next ones.
        device: "gpu", or "cpu" for a rehearsal on virtual CPU devices as if they were two GPUs, on little work.
        models: names of the zoo. MNIST is for mnist_cnn, mlp and linear; CIFAR-10 for the others.
        data: "auto" takes the real sets where they are found, "synthetic" draws images of their size.
        data_dir: as in `mk.data.load`.
        examples: take no more training examples; 64 in a rehearsal.
        batch_size: global; of one replica in weak scaling. 256, in a rehearsal 16.
        repeats: measurements of each speed; 5, in a rehearsal 1.
        each: called with the report so far, after each group of rows.

    Raises:
        DeviceError: there is no GPU, or a device computes wrongly.
        MirrorkitError: an argument that cannot be.
    """
    from mirrorkit.models import registry  # here, so that the command's --help needs no TensorFlow

    rehearsed = device == "cpu"
    examples, batch_size = examples or (64 if rehearsed else None), batch_size or (16 if rehearsed else 256)
    repeats = repeats or (1 if rehearsed else 5)
    if device not in DEVICES[:2] or data not in ("auto", "synthetic") or not minutes > 0 or not models:
        raise MirrorkitError(
            f"gpu(minutes={minutes!r}, device={device!r}, models={models!r}, data={data!r}) was asked for. It takes "
            "minutes above 0, 'gpu' or 'cpu', one model or more, 'auto' or 'synthetic'."
        )
    if not is_whole(repeats) or not is_whole(batch_size) or not is_whole(examples or batch_size, batch_size):
        raise MirrorkitError(
            f"repeats={repeats}, batch_size={batch_size} and examples={examples} were asked for; they must be whole "
            "numbers from 1 on, and the examples make a batch."
        )
    for model in models:
        registry.find(model)
    budget = Budget(60 * minutes)
    machine = about_with_gpus()
    if not rehearsed and not machine["gpus"]:
        raise DeviceError(
            "TensorFlow finds no GPU to measure: `python -m mirrorkit devices --require gpu` says why; rehearse the "
            "command here with --device cpu."
        )
    machine["verified"] = _verify(device, budget)
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
        sets = {name: str(Path(folder, f"{name}.npz")) for name in dict.fromkeys(map(set_for, models))}
        with Remote(f"{_PROCESSES}:Preparation", Member(environment=_NO_GPU), timeout=budget.left) as preparation:
            how = {"data_dir": data_dir, "examples": examples, "synthetic": data == "synthetic"}
            facts = {name: preparation.call("write", path=path, name=name, **how) for name, path in sets.items()}
        groups = plan(device, 2 if rehearsed else len(machine["gpus"]), models, sets, batch_size)
        what = " and ".join(f"{fact['examples']:,} images of {fact['data']}" for fact in facts.values())
        devices = "virtual CPU devices" if rehearsed else ", ".join(machine["gpus"])
        title = f"{' and '.join(models)} on {what}, global batch {batch_size}, {devices}"
        report = GpuReport("gpu", title, (), [], _chart([]), [*[REHEARSAL] * rehearsed, *NOTES], machine)
        for number, group in enumerate(groups):
            seconds = budget.left * len(group.jobs) / sum(len(later.jobs) for later in groups[number:])
            report.rows += measure(group, budget, seconds=seconds, repeats=repeats)
            report.chart = _chart(report.rows)
            if each is not None:
                each(report)
    machine["minutes_taken"] = minutes - budget.left / 60
    late = sum(row.get("error") == LEFT_OUT for row in report.rows)
    report.notes = [*report.notes, *[f"{late} rows were left out: they did not fit into {minutes:g} min."] * bool(late)]
    return report


def set_for(model: str) -> str:
    """The data set that a model of the zoo is trained on here."""
    return "mnist" if model in ("mnist_cnn", "mlp", "linear") else "cifar10"


def plan(device: str, gpus: int, models: Sequence[str], sets: Mapping[str, str], batch_size: int) -> list[Group]:
    """What to measure, the most telling groups first.

    Args:
        device: "gpu", or "cpu" for a rehearsal.
        gpus: how many there are.
        models: names of the zoo.
        sets: the file of each data set.
        batch_size: global.
    """
    several = [n for n in (2, 4, 8, 16) if n <= gpus]
    logical = device == "gpu"
    real, parts = ("GPUs", "logical GPUs") if logical else ("CPU as GPUs", "CPU as logical GPUs")

    def job(target: str, layout: Layout, **options: Any) -> Job:
        hidden = {} if device == "gpu" else _NO_GPU
        members = layout.members(**options)
        return Job(target, [replace(member, environment={**member.environment, **hidden}) for member in members])

    def trained(model: str, layout: Layout, size: int = batch_size, target: str = LOOP, **options: Any) -> Job:
        return job(target, layout, model=model, data=sets[set_for(model)], batch_size=size, **options)

    def of_one(part: str, model: str, contenders: Mapping[str, tuple[str, dict[str, Any]]]) -> Group:
        one = Layout("one_device", device, 1)
        jobs = {name: trained(model, one, target=target, **options) for name, (target, options) in contenders.items()}
        return Group(part, {"model": model}, jobs)

    def equivalence(on: str, counts: Sequence[int], logical: bool) -> Group:
        layouts = {n: Layout("mirrored", device, n, logical) for n in counts}
        return Group("equivalence", {"on": on}, {n: job(CLOSENESS, layout) for n, layout in layouts.items()})

    def scaling_of_parts(model: str) -> Group:
        layouts = {n: Layout("mirrored", device, n, logical) for n in (2, 4)}
        jobs = {("baseline", 1, batch_size): trained(model, Layout("one_device", device, 1))}
        jobs |= {("strong", n, batch_size): trained(model, layout) for n, layout in layouts.items()}
        return Group("scaling", {"model": model, "on": parts}, jobs, frozenset(layouts))

    def scaling_of_gpus(model: str) -> Group:
        layouts = for_scaling(device, several)
        jobs = {("baseline", 1, batch_size): trained(model, layouts[1])}
        for n in reversed(several):
            jobs["strong", n, batch_size] = trained(model, layouts[n])
            jobs["weak", n, n * batch_size] = trained(model, layouts[n], n * batch_size)
        return Group("scaling", {"model": model, "on": real}, jobs, frozenset(() if logical else several))

    groups = [of_one("one device", models[0], SPEED), equivalence(parts, (2, 4), logical)]
    if several:
        groups += [scaling_of_gpus(models[-1]), equivalence(real, several[-1:], False)]
    groups += [of_one("one device", model, SPEED) for model in models[1:]]
    groups.append(of_one("precision", models[-1], PRECISION))
    if several:
        sizes = [4**i * 1024 for i in (2, 5, 8)]
        layout = Layout("mirrored", device, several[-1])
        groups.append(Group("all-reduce", {}, {"all": job(COLLECTIVES, layout, sizes=sizes, repeats=3)}))
    groups += [scaling_of_parts(model) for model in reversed(models)]
    groups += [of_one("precision", model, PRECISION) for model in models[:-1]]
    return groups + [scaling_of_gpus(model) for model in models[:-1] if several]


def measure(group: Group, budget: Budget, *, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of a group; what fails or finds no time has an error."""
    common = {"part": group.part, **group.common}
    if group.part in ("equivalence", "all-reduce"):
        return [{**common, **row} for name, job in group.jobs.items() for row in _rows_of(name, job, budget)]
    found = train_within(group.jobs, budget, seconds=seconds, repeats=repeats)
    if group.part == "scaling":
        return [{**common, **row} for row in compare(found, group.shared)]
    return [{**common, **row} for row in against_fit(found)]


def _rows_of(name: Any, job: Job, budget: Budget) -> list[dict[str, Any]]:
    own = {"replicas": name} if is_whole(name) else {}
    if budget.slowest > budget.left:
        return [{**own, "error": LEFT_OUT}]
    try:
        with Remote(job.target, *job.members, timeout=budget.patience) as remote:
            return [{**own, **row} for row in remote.call("rows")]
    except MirrorkitError as error:
        return [{**own, "error": str(error)}]


def against_fit(found: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """Rows with the median speed as a multiple of Keras's `fit`, with its default and without XLA."""
    rows: list[dict[str, Any]] = []
    for name, measured in found.items():
        row: dict[str, Any] = {"what": name}
        if measured.error is None:
            row |= {"values": measured.speeds, "n": len(measured.speeds), **summary(measured.speeds), **measured.facts}
        else:
            row["error"] = measured.error
        rows.append(row)
    medians = {row["what"]: row["median"] for row in rows if "median" in row}
    for key, rival in {"to_fit": "fit", "to_fit_no_xla": "fit, no XLA"}.items():
        for row in rows:
            if rival in medians and "median" in row:
                row[key] = row["median"] / medians[rival]
    return rows


def _verify(device: str, budget: Budget) -> str:
    # Apart: this process would hold the GPUs' memory from then on.
    member = Member(environment={} if device == "gpu" else _NO_GPU)
    with Remote(f"{_PROCESSES}:Verification", member, timeout=budget.left) as remote:
        answer = remote.call("report", require=device)
    if "error" in answer:
        raise DeviceError(answer["error"])
    return answer["verified"]


def _chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """How many times as fast as one device."""
    rows = [row for row in rows if row["part"] == "scaling" and "median" in row]
    places = sorted({row["replicas"] for row in rows})
    speeds: dict[str, dict[int, float]] = {}
    for one in (row for row in rows if row["scaling"] == "baseline"):
        for row in rows:
            if (row["model"], row["on"]) == (one["model"], one["on"]) and row is not one:
                name = f"{row['model']}, {row['scaling']}" + (", logical" if "logical" in row["on"] else "")
                speeds.setdefault(name, {1: 1.0})[row["replicas"]] = row["median"] / one["median"]
    series = {name: [by_place.get(n) for n in places] for name, by_place in speeds.items()}
    return Chart("Scaling", [str(n) for n in places], series, x_label="replicas", y_label="times one device")
