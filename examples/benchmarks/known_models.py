"""Measure models whose training speed others have published on one GPU, in ten minutes.

    python examples/benchmarks/known_models.py --json known.json
    python examples/benchmarks/known_models.py --devices cpu      # a rehearsal, on very little work

ResNet-50 at 224 x 224 (batch 256) and BERT-base at 128 tokens (batch 64) train in mixed_bfloat16, ResNet-20 and the
MNIST CNN (batch 256) in float32, on synthetic batches that come again and again. `Loop`, `mk.fit`, Keras's `fit`, and a
hand-written tf.function loop have a process each and take turns. For mixed_bfloat16, the FLOPs per second are also a
share of the GPU's peak. At most three processes with a large model share the GPU's memory, so these models come
twice, each time with `Loop`. What fails or runs out of time is a row with an error. --json is written after each
group of rows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu import REHEARSAL, progress
from harness.chart import Chart
from harness.machine import about_with_gpus
from harness.measure import LEFT_OUT, Budget, Job, Measured, check_work, measure_in_turns
from harness.report import Column, Report, errors_in_a_line, figures, names, parsed, parser_of, present
from harness.topology import Topology

from mirrorkit.errors import ArgumentError, DeviceError

MODELS = "resnet-50", "bert-base", "resnet20", "mnist_cnn"
LARGE = MODELS[:2]
REPEATS = 3

CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Loop": ("Loop", {}),
    "fit": ("Fit", {}),
    "hand-written, XLA": ("HandWritten", {}),
    "mk.fit": ("MkFit", {}),
    "fit, XLA": ("Fit", {"of_compile": {"jit_compile": True}}),
}
FIRST, SECOND = ("Loop", "fit", "hand-written, XLA"), ("Loop", "mk.fit", "fit, XLA")

# Dense bfloat16 TFLOPS of tensor cores, from NVIDIA's data sheets, by words of the name that TensorFlow gives a GPU;
# the first entry whose words all are in it counts. The sheets of the H100 and later give twice that, with sparsity.
PEAKS: dict[tuple[str, ...], float] = {
    ("H200", "NVL"): 835.5,
    ("H200",): 989.5,
    ("GH200",): 989.5,
    ("H100", "PCIe"): 756.0,
    ("H100", "NVL"): 835.5,
    ("H100",): 989.5,  # SXM: "NVIDIA H100 80GB HBM3"
    ("A100",): 312.0,  # all forms
    ("A30",): 165.0,
    ("A10",): 125.0,
    ("L40S",): 362.0,
    ("L4",): 121.0,
}


class Published(NamedTuple):
    """A speed that others measured, in examples or tokens per second."""

    what: str
    speed: float
    on: str
    source: str


PUBLISHED = (
    # https://github.com/NVIDIA/DeepLearningExamples/tree/master/TensorFlow/Classification/ConvNets/resnet50v1.5:
    # "Training performance: NVIDIA DGX A100 (8x A100 40GB)", 1 GPU, batch 256, mixed precision + XLA
    Published("ResNet-50 v1.5, batch 256", 2375, "one A100 40GB", "NVIDIA's TensorFlow 20.06, float16, XLA"),
    # https://github.com/NVIDIA/DeepLearningExamples/tree/master/TensorFlow2/LanguageModeling/BERT: pre-training, "DGX
    # A100 (8x A100 80GB)", 1 GPU, batch 312, 128 tokens, mixed precision: 485.59 sequences/s
    Published("BERT-Large, 128 tokens, batch 312", 485.59 * 128, "one A100 80GB", "NVIDIA's TensorFlow 21.02, float16"),
)
# GB/s of memory, from NVIDIA's data sheets: https://www.nvidia.com/en-us/data-center/a100/, h100/ (SXM), h200/
BANDWIDTHS = {"A100 40GB": 1555, "H100 SXM": 3350, "H200": 4800}
BERT_LARGE = 2 * 3 * 24 * (12 * 1024**2 + 2 * 128 * 1024)  # FLOPs of a token in a training step, counted as here

NOTES = (
    "fit is Keras's own, without a strategy; its default, jit_compile='auto', turns XLA on where there is a GPU.",
    "TFLOP/s: of convolutions, dense layers and attention alone. A multiply-add is 2 FLOPs, and the backward pass is "
    "twice the forward pass. ResNet-50 has 4.09 G multiply-adds an image, which some call 4.1 GFLOPs.",
    "Of the peak: compared with dense bfloat16 of the GPU's data sheet; empty for float32 and for a GPU that is not "
    "in this script's table.",
)
COLUMNS = (
    *(Column("model", "model"), Column("policy", "precision"), Column("what", "trained by"), Column("counted", "of")),
    *(Column("median", "per second", ",.0f"), Column("lowest", "lowest", ",.0f"), Column("best", "highest", ",.0f")),
    *(Column("n", "n", "d"), Column("tflops", "TFLOP/s", ",.1f"), Column("of_peak", "of the peak", ".1%")),
    Column("peak_mb", "peak memory, MB", ",.0f"),
)


class Group(NamedTuple):
    """Contenders that take turns on a model; "resnet-50, rehearsed" is a tiny one."""

    work: str
    jobs: Mapping[str, Job]


def known_models(
    *,
    minutes: float = 10.0,
    devices: str = "gpu",
    models: Sequence[str] = MODELS,
    repeats: int | None = None,
    one_by_one: bool = False,
    each: Callable[[Report], Any] | None = None,
) -> Report:
    """Measure known models on one GPU within `minutes`.

    Args:
        minutes: the total time; groups of rows that no longer fit are left out.
        devices: "gpu", or "cpu" for a rehearsal with tiny models.
        models: some of "resnet-50", "bert-base", "resnet20", "mnist_cnn".
        repeats: turns of each; 3, in a rehearsal 1.
        one_by_one: start the processes of a group one after the other, so that XLA chooses its kernels on a GPU that
            does nothing else.
        each: called with the report so far, after each group of rows.

    Raises:
        DeviceError: there is no GPU.
        ArgumentError: an invalid argument.
    """
    rehearsed = devices == "cpu"
    if not (minutes > 0 and models and set(models) <= set(MODELS)):
        raise ArgumentError(
            f"known_models(minutes={minutes!r}, models={models!r}) was asked for. It takes minutes above 0, and one or "
            f"more of the models {', '.join(map(repr, MODELS))}."
        )
    check_work(repeats=repeats)
    repeats = repeats or (1 if rehearsed else REPEATS)
    machine = about_with_gpus()
    if not rehearsed and not machine["gpus"]:
        raise DeviceError(
            "TensorFlow finds no GPU to measure: `python -m mirrorkit devices --require gpu` says why; rehearse the "
            "command here with --devices cpu."
        )
    gpu = "" if rehearsed else machine["gpus"][0]
    budget = Budget(60 * minutes, share=1 / 3)  # XLA takes a minute or two for ResNet-50
    title = f"{', '.join(models)} on {gpu or 'a CPU'}, synthetic data"
    notes = [*[REHEARSAL] * rehearsed, *NOTES, *published()]
    rows: list[dict[str, Any]] = []
    report = Report("known_models", title, COLUMNS, rows, chart(rows), notes, machine)
    for group in plan(devices, models):
        found = measure_in_turns(group.jobs, budget=budget, repeats=repeats, epochs=1, together=not one_by_one)
        rows += rows_of(group.work, found, peak_of(gpu))
        report.chart = chart(rows)
        if each is not None:
            each(report)
    late = sum(row.get("error") == LEFT_OUT for row in rows)
    report.notes = [*notes, *[f"{late} rows were left out: they did not fit into {minutes:g} min."] * bool(late)]
    return report


def plan(device: str, models: Sequence[str]) -> list[Group]:
    """Return the groups, the most telling ones first."""
    ending = "rehearsed" if device == "cpu" else "known"

    def group(model: str, of: Sequence[str]) -> Group:
        work = f"{model}, {ending}"
        common = {"work": work, "optimizer": known(work).optimizer, "steps": None}
        jobs = {
            name: Job(f"kinds.known_contenders:{target}", Topology.of(device, 1), {**common, **more})
            for name, (target, more) in CONTENDERS.items()
            if name in of
        }
        return Group(work, jobs)

    groups = [group(model, FIRST if model in LARGE else list(CONTENDERS)) for model in models]
    return groups + [group(model, SECOND) for model in models if model in LARGE]


def known(work: str) -> Any:
    """A `kinds.known.Known` by its name."""
    from kinds.known import KNOWN, REHEARSED  # here, since this loads TensorFlow

    return (KNOWN | REHEARSED)[work]


def rows_of(name: str, found: Mapping[str, Measured], peak: float | None) -> list[dict[str, Any]]:
    """A row for each contender: speeds, TFLOP/s, and their share of the peak, which is in TFLOPS."""
    work = known(name)
    rows = []
    for contender, of in found.items():
        seconds = [second for turn in of.speeds for second in turn["step"]]
        row = {"model": name.removesuffix(", known"), "policy": work.policy, "what": contender, "counted": work.counted}
        row |= figures([work.batch * work.of_example / second for second in seconds], of.error)
        if of.error is None:
            row |= {"lowest": min(row["values"]), "peak_mb": max(turn["peak"] for turn in of.speeds), **of.facts}
            row["tflops"] = row["median"] / work.of_example * row["flops"] / 1e12
            if peak and work.policy == "mixed_bfloat16":
                row["of_peak"] = row["tflops"] / peak
        rows.append(row)
    return rows


def chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """A bar for each row, in TFLOP/s, which images and tokens have in common."""
    places = [f"{row['model']}, {row['what']}" for row in rows]
    series = {"TFLOP/s": [row.get("tflops") for row in rows]}
    return Chart("Models whose speed is known", places, series, y_label="TFLOP/s (median)", bars=True)


def peak_of(gpu: str) -> float | None:
    """Dense bfloat16 TFLOPS of a GPU by its name in TensorFlow; None where it is unknown, or a part of a GPU."""
    words = re.split(r"[\s-]+", gpu)
    if "MIG" in words:
        return None
    return next((peak for of, peak in PEAKS.items() if set(of) <= set(words)), None)


def published() -> list[str]:
    """Lines with what others measured, and the limit that memory sets."""
    resnet, bert = PUBLISHED
    base = BANDWIDTHS["A100 40GB"]
    limits = [f"{resnet.speed * of / base:,.0f} on an {gpu}" for gpu, of in BANDWIDTHS.items() if of != base]
    share = bert.speed * BERT_LARGE / 1e12 / PEAKS["A100",]
    return [
        f"Published: {resnet.what}: {resnet.speed:,} images/s on {resnet.on} ({resnet.source}). If only the memory's "
        f"bandwidth counts, that is {' and '.join(limits)} (reckoned, not measured).",
        f"Published: {bert.what}: {bert.speed:,.0f} tokens/s on {bert.on} ({bert.source}), {share:.0%} of the peak.",
    ]


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all; what no longer fits is left out")
    parser.add_argument("--devices", choices=["gpu", "cpu"], default="gpu", help="cpu: a rehearsal on little work")
    parser.add_argument("--models", type=names, metavar="NAME,...", default=MODELS, help=",".join(MODELS))
    parser.add_argument("--repeats", type=int, help=f"measurements of each speed, in turns ({REPEATS})")
    parser.add_argument("--one-by-one", action="store_true", help="start them so; takes longer: XLA has a quiet GPU")
    return parsed(parser)


def main() -> None:
    options = parse()
    given = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
    with errors_in_a_line():
        present(known_models(**given, each=progress(options.json)), options)


if __name__ == "__main__":
    main()
