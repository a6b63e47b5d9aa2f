"""The cost of the checks of the first batch, compared with eager steps of Keras on it and with the first step.

    python examples/benchmarks/first_batch.py --replicas 2 --rounds 5

Before the first update, a step is compared with Keras, and a batch with its parts, once. For comparison, the
table has the first three eager training steps of Keras on the batch, also in a fresh process, and three later ones. It
also has the first step without the checks, which includes its trace, and a first epoch of 100 batches.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from harness.measure import values_in_turns
from harness.processes import Group, Member
from harness.report import Column, figures, parsed, parser_of, present, report_of

import mirrorkit as mk
from mirrorkit.train.first_batch.check import first_batch_check

L = keras.layers
BATCH, CLASSES, WORDS, LENGTH, EPOCH = 32, 10, 100, 32, 100


def transformer() -> keras.Model:
    """Two blocks of attention over words, with masks and Dropout."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = L.Embedding(WORDS, 32, mask_zero=True)(ids)
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 8, dropout=0.1)(x, x))
        x = L.LayerNormalization()(x + L.Dropout(0.1)(L.Dense(32)(L.Dense(64, "gelu")(x))))
    return keras.Model(ids, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(x)))


def recurrent() -> keras.Model:
    """A GRU over words, which is traced."""
    return keras.Sequential(
        [keras.Input((LENGTH,), dtype="int32"), L.Embedding(WORDS, 32), L.GRU(32, dropout=0.1), L.Dense(CLASSES)]
    )


def resnet50() -> keras.Model:
    """On pictures of 64 x 64."""
    return keras.applications.ResNet50(
        weights=None, classes=CLASSES, input_shape=(64, 64, 3), classifier_activation=None
    )


NETS = {
    "mnist_cnn": partial(mk.models.create, "mnist_cnn"),
    "ResNet-50": resnet50,
    "transformer": transformer,
    "GRU": recurrent,
}


class Measured:
    """A process with a net."""

    def __init__(self, net: str, replicas: int) -> None:
        self.strategy = mk.strategy.create("mirrored" if replicas > 1 else "one_device", devices=f"cpu:{replicas}")
        self.make = NETS[net]
        with self.strategy.scope():
            self.model = self.make()
            optimizer = keras.optimizers.Adam(1e-3)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(self.model, optimizer, loss=self.loss, metrics=["accuracy"])
        self.loop = mk.train.Loop(self.strategy, step, steps_per_call=1)
        rng, shape = np.random.default_rng(0), self.model.input_shape[1:]
        x = rng.integers(0, WORDS, (BATCH, *shape)) if len(shape) == 1 else rng.uniform(0, 1, (BATCH, *shape))
        self.rows = x.astype(self.model.inputs[0].dtype), rng.integers(0, CLASSES, BATCH)

    def of_keras(self) -> dict[str, float]:
        """Return the seconds of eager steps of Keras."""
        model = self.make()
        model.compile(keras.optimizers.Adam(1e-3), self.loss, metrics=["accuracy"], run_eagerly=True)
        steps = [_seconds(lambda: model.train_on_batch(*self.rows)) for _ in range(6)]
        return {"first three eager steps": sum(steps[:3]), "later three": sum(steps[3:])}

    def of_checks(self) -> dict[str, float]:
        """Return the seconds of the checks, and of what follows them."""
        step, batch = self.loop.step.for_loop(self.strategy), tuple(map(tf.constant, self.rows))
        data = tf.data.Dataset.from_tensors(batch).repeat()
        check = first_batch_check(step, begins=False)  # so that `fit` makes none, as after a warm-up
        assert check is not None
        first = _seconds(lambda: step.prepare(batch))
        checks = _seconds(lambda: check(batch))
        ended: list[float] = []
        steps = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ended.append(time.perf_counter()))
        start = time.perf_counter()
        epoch = first + _seconds(lambda: self.loop.fit(data, steps_per_epoch=EPOCH, callbacks=[steps], verbose=0))
        return {"checks": checks, "first step": first + ended[0] - start, "first epoch": epoch}


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices")
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=list(NETS), help="which")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each")
    options = parsed(parser)

    def measured(net: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in ("of_keras", "of_checks"):
            with Group("first_batch:Measured", Member({"net": net, "replicas": options.replicas})) as process:
                found |= process.call(part)
        return found

    found = values_in_turns({net: partial(measured, net) for net in options.nets}, options.rounds)
    rows: list[dict[str, Any]] = []
    for net, values in found.items():
        for what in values[0]:
            row = {"what": f"{net}: {what}", "net": net, "measured": what}
            rows.append({**row, **figures([value[what] for value in values], smaller_is_better=True)})
    title = f"The checks of the first batch, {options.replicas} replicas, batches of {BATCH}: seconds"
    columns = [
        *(Column("what", "what"), Column("best", "best", ".3f"), Column("median", "median", ".3f")),
        *(Column("n", "n", "d"), Column("spread", "spread", ".0%")),
    ]
    present(report_of("first_batch", title, columns, rows, unit="seconds"), options)


if __name__ == "__main__":
    main()
