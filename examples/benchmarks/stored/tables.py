"""The tables of the documentation, each made from stored runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.report import span

from stored.runs import Run

REPLICAS = {
    "loop-resident": "**`Loop`**",
    "loop": "`Loop`, `tf.data` makes the batches",
    "loop-xla": "`Step(jit_compile=True)`",
    "fit": "Keras `fit`",
    "fit-repeat": "`fit`, one dataset for all epochs",
    "fit-xla": "`fit`, `compile(jit_compile=True)`",
    "hand": "a hand-written `tf.distribute` loop",
    "orbit": "orbit",
    "loop-apart": "one process per core, no communication",
}
WORKERS = {
    "loop-workers": "**`Loop`**, 2 workers",
    "loop-workers@1": "`Loop`, 1 worker",
    "loop-apart": "2 processes, no communication",
    "ddp": "PyTorch DDP over gloo, 2 processes",
}
RECORDS = {
    "loop-records": "**`Loop`**",
    "hand-records": "a hand-written `tf.distribute` loop",
    "fit-records": "Keras `fit`",
}
FIRST = {
    "loop": "**`Loop`**, 4 replicas",
    "fit": "Keras `fit`, 4 replicas",
    "hand": "a hand-written `tf.distribute` loop, 4 replicas",
    "orbit": "orbit, 4 replicas",
    "loop@1": "`Loop`, 1 device",
    "loop@16": "`Loop`, 16 replicas",
}


def times(ratio: float) -> str:
    """A ratio with three digits, at most two of them behind the point."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def spread(row: dict[str, Any]) -> str:
    return " to ".join(map(number, span(row)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def under(run: Run, each: str) -> list[str]:
    """What a table is read with."""
    numbers = sorted({row["n"] for row in run.rows})
    return ["", f"n = {' or '.join(map(str, numbers))} {each}; `{run.command}`"]


def peers(
    run: Run, names: dict[str, str], unit: str = "images/s", *, smaller_is_better: bool = False, accuracy: bool = True
) -> list[str]:
    """A row for each contender; the first one is compared with each."""
    first = run.row(contender=next(iter(names)))
    measured = {row["contender"] for row in run.rows}
    lines = []
    for contender in filter(measured.__contains__, names):
        row = run.row(contender=contender)
        ratio = row["median"] / first["median"] if smaller_is_better else first["median"] / row["median"]
        cells = [names[contender], number(row["median"]), spread(row), "" if row == first else times(ratio)]
        lines.append([*cells, *([f"{row['accuracy']:.4f}"] if accuracy else [])])
    ratio_head = "it / `Loop`" if smaller_is_better else "`Loop` / it"
    head = ["trained by", f"{unit}, median", "range", ratio_head, *["accuracy"] * accuracy]
    return table(head, lines)


def machine(*runs: Run) -> list[str]:
    """Where the runs were made: a line for each machine."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        basic = [*run.versions("python", "tensorflow", "keras"), *run.environment]
        found.setdefault((run.date, f"{run.hardware}; {', '.join(basic)}"), []).append(run)
    lines = []
    for (date, what), own in found.items():
        peers = sorted({version for run in own for version in run.versions("torch", "tf-models-official")})
        which = f" ({', '.join(run.name for run in own)})" if len(found) > 1 else ""
        lines.append(f"{date}{which}: {', '.join([what, *peers])}.")
    return ["Measured on " + lines[0]] if len(lines) == 1 else ["Measured on:", "", *(f"- {line}" for line in lines)]


def epochs_of(names: dict[str, str]) -> Callable[[Run], list[str]]:
    """A table of these contenders, whose measurements are epochs."""
    return lambda run: [*peers(run, names), *under(run, "epochs each")]


def first_step(run: Run) -> list[str]:
    lines = peers(run, FIRST, "seconds", smaller_is_better=True, accuracy=False)
    return [*lines, *under(run, "processes each")]


def strategies(run: Run) -> list[str]:
    first = run.rows[0]
    lines = [
        [
            f"`{row['strategy']}`",
            {"workers": "processes", "cpu": "CPU", "gpu": "GPU"}.get(row["device"], row["device"]),
            str(row["replicas"]),
            *(number(row["median"]), spread(row), times(row["median"] / first["median"]), f"{row['accuracy']:.4f}"),
        ]
        for row in run.rows
    ]
    head = ["strategy", "on", "replicas", "examples/s, median", "range", "to one device", "test accuracy"]
    return [*table(head, lines), *under(run, "epochs each")]


def callbacks(run: Run) -> list[str]:
    first, lines = run.rows[0], []
    for row in run.rows:
        low, high = span(row)
        more = f"{row['median'] / first['median'] - 1:+.1%}"
        lines.append([row["variant"], f"{row['median']:.3f}", f"{low:.3f} to {high:.3f}", more])
    return [*table(["callback", "seconds of an epoch, median", "range", "to nothing"], lines), *under(run, "runs each")]


def own_train_step(run: Run) -> list[str]:
    """Seconds of the first step, milliseconds of a later one."""
    lines = []
    for replicas in sorted({row["replicas"] for row in run.rows}):
        for measured, unit, factor in (("first step", "s", 1), ("step", "ms", 1000)):
            rows = [run.row(measured=measured, replicas=replicas, contender=name) for name in ("InALoop", "ByHand")]
            cells = [
                f"{factor * value:.2f}" if index == 0 else " to ".join(f"{factor * end:.2f}" for end in value)
                for row in rows
                for index, value in enumerate((row["median"], span(row)))
            ]
            lines.append([f"{replicas}, {measured}, {unit}", *cells, times(rows[0]["median"] / rows[1]["median"])])
    head = ["replicas", "**`Loop`**, median", "range", "by hand, median", "range", "`Loop` / by hand"]
    return [*table(head, lines), *under(run, "processes, or blocks of steps, each")]


def first_batch(run: Run) -> list[str]:
    lines = []
    for net in dict.fromkeys(row["net"] for row in run.rows):
        parts = ("first three eager steps", "later three", "checks", "first step", "first epoch")
        eager, warm, checks, first, epoch = (run.row(net=net, measured=what) for what in parts)
        low, high = span(checks)
        cells = [f"{row['median']:.2f}" for row in (eager, warm, checks, first)]
        cells.insert(3, f"{low:.2f} to {high:.2f}")
        share = checks["median"] / (checks["median"] + epoch["median"])
        lines.append([net, *cells, *(times(checks["median"] / row["median"]) for row in (eager, warm)), f"{share:.1%}"])
    head = [
        "net",
        "first three eager steps of Keras, s",
        "later three, s",
        "the checks, s",
        "range",
        "the first step without, s",
        "checks / first three",
        "checks / later three",
        "of an epoch of 100 batches",
    ]
    return [*table(head, lines), *under(run, "processes each")]


def image_folder(run: Run) -> list[str]:
    names = {
        "folder": "**`mk.data.image_folder`**",
        "keras": "`keras.utils.image_dataset_from_directory`",
        "records": "`mk.data.records`, the same images",
    }
    first, lines = run.row(contender="folder"), []
    for contender, name in names.items():
        row = run.row(contender=contender)
        ratio = "" if row == first else times(first["median"] / row["median"])
        lines.append([name, number(row["median"]), spread(row), ratio, number(row["peak_small"]), number(row["peak"])])
    head = ["read by", "images/s, median", "range", "folder / it", "peak memory, MB: of a tenth of the set", "of all"]
    return [*table(head, lines), *under(run, "epochs each")]


def parquet_table(run: Run) -> list[str]:
    lines = []
    for row in run.rows:
        name = "**`mk.data.parquet`**" if "peak" in row else "pyarrow alone, in order"
        peak = number(row["peak"]) if "peak" in row else ""
        lines.append([name, f"{row['rows']:,}", number(row["megabytes"]), number(row["median"]), spread(row), peak])
    head = ["read by", "rows", "MB of the files", "rows/s, median", "range", "peak memory, MB"]
    return [*table(head, lines), *under(run, "epochs each")]


def messages(run: Run) -> list[str]:
    lines = []
    for size in sorted({row["bytes"] for row in run.rows}):
        line = [f"{size:,}"]
        for name in ("auto", "ring"):
            row = run.row(implementation=name, bytes=size)  # its values are GB/s
            low, median, high = (f"{size / speed / 1e3:,.0f}" for speed in (span(row)[1], row["median"], span(row)[0]))
            line += [median, f"{low} to {high}"]
        lines.append(line)
    head = ["bytes", '`"auto"`: microseconds, median', "range", '`"ring"`: microseconds, median', "range"]
    return [*table(head, lines), *under(run, "measurements each")]


def bytes_between_workers(run: Run) -> list[str]:
    lines = []
    for row in run.rows:
        low, high = span(row)
        what = [f"**{row['gradients']}**" if row["gradients"] == "rows" else row["gradients"], row["optimizer"]]
        lines.append([*what, str(row["worker"]), f"{row['median']:,.0f}", f"{low:,.0f} to {high:,.0f}"])
    head = ["gradients of the tables", "optimizer", "sent by worker", "bytes of a step, median", "range"]
    return [*table(head, lines), *under(run, "epochs each"), *machine(run)]


def summary(cnn: Run, linear: Run, one: Run, records: Run) -> list[str]:
    """The ratios, for docs/speed.md."""
    replicas = ["loop-resident", "fit", "fit-repeat", "hand", "orbit"]
    compared = [
        ("CNN, 4 virtual replicas", cnn, REPLICAS, [*replicas, "loop-apart"]),
        ("CNN, 2 workers on a core each", cnn, WORKERS, ["loop-workers", "loop-workers@1", "ddp"]),
        ("CNN from TFRecord shards", records, RECORDS, ["loop-records", "fit-records", "hand-records"]),
        ("linear softmax, 4 virtual replicas", linear, REPLICAS, replicas),
        ("linear softmax, 1 device", one, REPLICAS, ["loop-resident", "fit", "fit-repeat", "loop-xla"]),
    ]
    lines = []
    for work, run, names, (own, *others) in compared:
        for other in others:
            ratio = run.row(contender=own)["median"] / run.row(contender=other)["median"]
            lines.append([work if other == others[0] else "", names[other], times(ratio)])
    head, _, *rows = table(["work", "compared with", "`Loop` / it"], lines)
    return [head, "| --- | --- | ---: |", *rows]


README = {"loop-resident": "this library", "fit": "Keras `fit`", "hand": "hand-written loop", "orbit": "orbit"}


def readme(cnn: Run, linear: Run) -> list[str]:
    """Two lines and what they are read with."""
    lines = []
    for work, run in {"CNN, batches of 256": cnn, "linear model, batches of 64": linear}.items():
        rows = [run.row(contender=name) for name in README]
        lines.append([work, *(f"{number(row['median'])} ({spread(row)})" for row in rows)])
    return [*table(["images/s: median (range)", *README.values()], lines), "", *in_words(cnn, linear)]


def in_words(cnn: Run, linear: Run) -> list[str]:
    """What README's table comes to, for a page without it."""
    ratios, once, numbers = [], [], set()
    for run in (cnn, linear):
        rows = [run.row(contender=name) for name in README]
        ratios.append(times(rows[0]["median"] / rows[1]["median"]))
        once.append(times(rows[0]["median"] / run.row(contender="fit-repeat")["median"]))
        numbers |= {row["n"] for row in rows}
    text = (
        f"The CNN trains {ratios[0]} times as fast as with `fit`, {once[0]} times where `fit` gets one dataset for all "
        "epochs; most of its time goes into convolutions, which take as long in both. The linear model trains "
        f"{ratios[1]} and {once[1]} times as fast: its steps are so short that `fit` spends most of the time between "
        "them. MNIST on 4 virtual replicas; this library keeps the images on the devices, the others read `tf.data`; "
        "accuracy tracked by all, in turns, n = "
        f"{' or '.join(map(str, sorted(numbers)))} epochs each, {cnn.date}, {cnn.hardware}, "
        f"{', '.join(cnn.versions('tensorflow', 'keras'))}."
    )
    return textwrap.wrap(text, 118)


# Name of a block: what makes it, and the runs that it is made from
BLOCKS: dict[str, tuple[Callable[..., list[str]], Sequence[str]]] = {
    "machine": (machine, []),  # all that are there
    **{name: (epochs_of(REPLICAS), [name]) for name in ("cnn", "linear", "linear-one-device")},
    "workers": (epochs_of(WORKERS), ["cnn"]),
    "records": (epochs_of(RECORDS), ["records"]),
    "first-step": (first_step, ["first-step"]),
    "strategies": (strategies, ["strategies"]),
    "callbacks": (callbacks, ["callbacks"]),
    "own-train-step": (own_train_step, ["own-train-step"]),
    "first-batch": (first_batch, ["first-batch"]),
    "messages": (messages, ["messages"]),
    "image-folder": (image_folder, ["image-folder"]),
    "parquet-table": (parquet_table, ["parquet-table"]),
    "bytes-between-workers": (bytes_between_workers, ["bytes-between-workers"]),
    "summary": (summary, ["cnn", "linear", "linear-one-device", "records"]),
    "readme": (readme, ["cnn", "linear"]),
    "speed-in-words": (in_words, ["cnn", "linear"]),
}
