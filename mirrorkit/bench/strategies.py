"""The same model and epochs under every strategy that this machine can run: speed and accuracy side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrorkit.bench.chart import Chart
from mirrorkit.bench.layout import SHARED_NOTE, Hardware, for_comparison
from mirrorkit.bench.measure import about_with_gpus, train_in_turns
from mirrorkit.bench.report import Column, Report, summary
from mirrorkit.errors import MirrorkitError
from mirrorkit.whole import is_whole

_COLUMNS = (
    Column("strategy", "strategy"),
    Column("device", "device"),
    Column("replicas", "replicas", "d"),
    Column("median", "examples/s", ",.0f"),
    Column("best", "best", ",.0f"),
    Column("n", "n", "d"),
    Column("spread", "spread", ".0%"),
    Column("ratio", "to one device", ".2f"),
    Column("accuracy", "accuracy", ".4f"),
)


def strategies(
    *,
    model: str = "mnist_cnn",
    data: str = "auto",
    data_dir: str | None = None,
    examples: int | None = None,
    batch_size: int = 256,
    device: str | None = None,
    replicas: Sequence[int] | None = None,
    epochs: int = 5,
    resident: bool = True,
) -> Report:
    """Train the same model for the same epochs under every strategy, an epoch of each in turns.

    Args:
        model: a name of the zoo, or "module:function" of a function that returns a Keras model with logits.
        data, data_dir: as in `mk.data.load`; "auto" is MNIST where it is found, else the synthetic set.
        examples: take no more training examples.
        batch_size: global: all replicas together.
        device: "cpu" (virtual devices, and workers as far as there are cores), "gpu", or "workers" (processes of one
            core each, also with a parameter server); GPUs where there are any.
        replicas: numbers of them beside one device.
        epochs: of each strategy; its speed is the median over them, its accuracy that on the test set after them.
        resident: whether the data lies on the devices (`mk.data.resident`), or tf.data makes the batches.

    Raises:
        MirrorkitError: one device could not be measured. Another strategy that fails is a row with an error.
        StrategyError: no such device or number of replicas.
    """
    if not is_whole(epochs):
        raise MirrorkitError(f"epochs={epochs!r} was asked for; it must be a whole number from 1 on.")
    machine = about_with_gpus()
    hardware = Hardware.of(machine)
    device = hardware.device(device)
    layouts = for_comparison(device, replicas or hardware.counts(device), cores=hardware.cores)
    found = train_in_turns(
        {layout: (layout, batch_size) for layout in layouts},
        repeats=epochs,
        epochs=1,
        warm_up=0,  # the loop has compiled; another epoch would train the model further than `epochs` says
        **{"model": model, "data": data, "data_dir": data_dir, "examples": examples, "resident": resident},
    )
    rows: list[dict[str, Any]] = []
    for layout, measured in found.items():
        row: dict[str, Any] = {"strategy": layout.kind, "device": layout.device, "replicas": layout.replicas}
        if measured.error is None:
            row |= {"values": measured.speeds, "n": len(measured.speeds), **summary(measured.speeds)}
            row |= {"ratio": row["median"] / (rows[0] if rows else row)["median"], "accuracy": measured.accuracy}
        else:
            row["error"] = measured.error
        rows.append(row)
    trained = found[layouts[0]].facts
    what = f"{model} on {trained['examples']:,} images of {trained['data']}"
    title = f"Strategies: {what}, {device}, global batch {batch_size}, {epochs} epochs"
    shared = any(hardware.is_shared(layout.device, layout.replicas) for layout in layouts)
    names = [f"{row['strategy']} x{row['replicas']}" for row in rows]
    spans = [(min(row["values"]), max(row["values"])) if "values" in row else None for row in rows]
    y_label = "examples/s (median, range)"
    chart = Chart(
        f"{model}, global batch {batch_size}",
        names,
        {"speed": [row.get("median") for row in rows]},
        {"speed": spans},
        y_label=y_label,
        bars=True,
    )
    return Report("strategies", title, _COLUMNS, rows, chart, [SHARED_NOTE] * shared, machine)
