"""Memory of a transformer on each device: with a layout, with sharded slots, and with recomputed activations.

    python examples/benchmarks/model_memory.py

Prints the bytes of weights and Adam's slots on each device, which do not depend on the kind of device. Also prints how
much the memory of a process grows at most while it trains on the CPU, with and without `mk.parallel.Recompute`. Every
training runs in a fresh process, in turns.
"""

from __future__ import annotations

import resource
import sys
from functools import partial

import keras
import numpy as np
from harness.measure import values_in_turns
from harness.processes import Group, Member
from harness.report import SECONDS_COLUMNS, Column, figures, parsed, parser_of, present, report_of
from keras import layers as L

import mirrorkit as mk
from mirrorkit.variables import copies

WHERE = ("one device", "2 replicas", "layout", "2 replicas with a layout", "2 sharded", "4 sharded")
HALF = 4  # blocks on each device of a layout


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024, help="for the activations")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each row of activations")
    options = parsed(parser)
    with Group("model_memory:Bytes", Member({"width": options.width})) as remote:
        held = {where: remote.call("of", where=where) for where in WHERE}

    def peak(recompute: bool) -> float:
        member = Member({"width": options.width, "batch": options.batch_size, "recompute": recompute})
        with Group("model_memory:Peak", member) as remote:
            return remote.call("train")

    calls = {name: partial(peak, bool(i)) for i, name in enumerate(("all activations kept", "Recompute of each block"))}
    grown = values_in_turns(calls, options.rounds)
    rows = [{"what": name, **figures(values, smaller_is_better=True)} for name, values in grown.items()]
    for where, of_devices in held.items():
        fullest = max(of_devices.values(), key=lambda parts: parts["weights"] + parts["slots"])
        rows.append({"what": where, "devices": len(of_devices), **fullest, "bytes": of_devices})
    columns = [
        *(Column("what", "what"), Column("median", "MB", ",.0f"), *SECONDS_COLUMNS[2:]),
        *(Column("devices", "devices", "d"), Column("weights", "weights, bytes", ",d"), Column("slots", "slots", ",d")),
    ]
    title = "Memory of a transformer: MB by which a training grows, bytes of weights and slots on the fullest device"
    present(report_of("model_memory", title, columns, rows, unit="MB"), options)


class Bytes:
    """Builds the same model in different ways."""

    def __init__(self, width: int) -> None:
        mk.devices.split_cpu(4)
        self.width = width

    def of(self, where: str) -> dict[str, dict[str, int]]:
        """Return the bytes of weights and slots on each device."""
        keras.utils.clear_session()
        devices = {"one device": 1, "2 replicas with a layout": 4, "4 sharded": 4}.get(where, 2)
        if "layout" in where:
            rules = {f"embed|[a-z]+[0-{HALF - 1}]": 0, f"head|[a-z]+[{HALF}-9]": 1}
            layout = mk.parallel.Layout(rules, devices=f"cpu:{devices}")
            strategy = layout.strategy()
            with layout, strategy.scope():
                step = make_step(self.width)
        else:
            strategy = mk.strategy.create("one_device" if devices == 1 else "mirrored", devices=f"cpu:{devices}")
            with strategy.scope():
                step = make_step(self.width, shard_optimizer="sharded" in where)
        step.build(strategy)
        found: dict[str, dict[str, int]] = {}
        for kind, variables in (
            ("weights", step.model.trainable_variables),
            ("slots", [v for v in step.optimizer.variables if len(v.shape)]),
        ):
            for copy in (copy for variable in variables for copy in copies(variable)):
                sizes = found.setdefault(copy.device[-5:], {"weights": 0, "slots": 0})
                sizes[kind] += copy.shape.num_elements() * copy.dtype.size
        return found


class Peak:
    """A training in a process of its own."""

    def __init__(self, width: int, batch: int, recompute: bool) -> None:
        strategy = mk.strategy.create("one_device", devices="cpu:1")
        x = np.random.default_rng(0).normal(size=(batch, 28, 28)).astype("float32")
        self.data = mk.data.batches(mk.data.arrays(x, np.arange(batch) % 10), global_batch_size=batch)
        with strategy.scope():
            self.loop = mk.train.Loop(strategy, make_step(width, recompute=recompute))

    def train(self) -> float:
        """Return the MB (1e6 bytes) by which the process was larger at most than before."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.loop.fit(self.data, epochs=3, verbose=0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return grown * (1 if sys.platform == "darwin" else 1024) / 1e6


def make_step(width: int, *, recompute: bool = False, shard_optimizer: bool = False) -> mk.train.Step:
    keras.utils.set_random_seed(0)
    x = keras.Input([28, 28])
    h = L.Dense(width, name="embed")(x)
    for number in range(2 * HALF):
        part = block(number, width)
        h = (mk.parallel.Recompute(part, name=f"recompute{number}") if recompute else part)(h)
    model = keras.Model(x, L.Dense(10, name="head")(L.GlobalAveragePooling1D()(h)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(model, keras.optimizers.Adam(1e-3), loss=loss, shard_optimizer=shard_optimizer)


def block(number: int, width: int) -> keras.Model:
    x = keras.Input([28, width])
    attended = L.MultiHeadAttention(4, width // 4, name=f"attention{number}")(x, x)
    h = L.LayerNormalization(name=f"first{number}")(x + attended)
    wide = L.Dense(4 * width, "gelu", name=f"wide{number}")(h)
    return keras.Model(x, L.LayerNormalization(name=f"second{number}")(h + L.Dense(width, name=f"dense{number}")(wide)))


if __name__ == "__main__":
    main()
