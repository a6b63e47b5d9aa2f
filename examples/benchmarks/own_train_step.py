"""A Keras model's own train_step, a WGAN-GP, unchanged in a Loop, compared with a hand-written training loop.

    python examples/benchmarks/own_train_step.py --replicas 1 2 4 --rounds 5

Both make the same three updates per batch, on the same data. The hand-written loop is `strategy.run` in a
`tf.function`, and Keras's optimizer sums the gradients. Each has its own process. The first measurement is the time
from the created model to the end of the first step, in fresh processes; then follow blocks of steps, in turns. Ratios
are those of medians.
"""

from __future__ import annotations

import contextlib
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

NOISE, PIXELS = 16, 784


def net(inputs: int, units: int, outputs: int) -> keras.Model:
    hidden = [keras.layers.Dense(units, "leaky_relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])


class WGAN(keras.Model):
    """As its owner wrote it for Keras: nothing here knows of replicas."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.critic, self.generator = net(PIXELS, units, 1), net(NOISE, units, PIXELS)
        self.c_loss, self.g_loss = keras.metrics.Mean(name="c_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, c_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.c_optimizer, self.g_optimizer = c_optimizer, g_optimizer

    def critic_gradients(self, real: tf.Tensor) -> tuple[tf.Tensor, Any]:
        noise, part = tf.random.normal((tf.shape(real)[0], NOISE)), tf.random.uniform((tf.shape(real)[0], 1))
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            with tf.GradientTape() as inner:
                between = part * real + (1 - part) * fake
                inner.watch(between)
                judged = self.critic(between, training=True)
            norm = tf.sqrt(tf.reduce_sum(inner.gradient(judged, between) ** 2, axis=1) + 1e-12)
            loss = tf.reduce_mean(self.critic(fake, training=True)) - tf.reduce_mean(self.critic(real, training=True))
            loss += 10.0 * tf.reduce_mean((norm - 1.0) ** 2)
        return loss, tape.gradient(loss, self.critic.trainable_variables)

    def generator_gradients(self, real: tf.Tensor) -> tuple[tf.Tensor, Any]:
        noise = tf.random.normal((tf.shape(real)[0], NOISE))
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.critic(self.generator(noise, training=True), training=True))
        return loss, tape.gradient(loss, self.generator.trainable_variables)

    def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
        for _ in range(2):
            c_loss, gradients = self.critic_gradients(data)
            self.c_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables, strict=True))
        g_loss, gradients = self.generator_gradients(data)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables, strict=True))
        self.c_loss.update_state(c_loss)
        self.g_loss.update_state(g_loss)
        return {"c_loss": self.c_loss.result(), "g_loss": self.g_loss.result()}


class Contender:
    """What a process holds: strategy, data and model; the optimizers are not built yet."""

    def __init__(self, replicas: int, batch_size: int, units: int) -> None:
        self.strategy = mk.strategy.create("mirrored" if replicas > 1 else "one_device", devices=f"cpu:{replicas}")
        images = np.random.default_rng(0).normal(size=(8 * batch_size, PIXELS)).astype("float32")
        self.data = tf.data.Dataset.from_tensor_slices(images).batch(batch_size, drop_remainder=True).repeat()
        self.replicas = replicas
        with self.strategy.scope():
            self.model = WGAN(units)
            self.model.compile(*[keras.optimizers.Adam(1e-4, beta_1=0.5) for _ in range(2)])

    def steps(self, count: int) -> None:
        raise NotImplementedError

    def seconds(self, count: int) -> float:
        """Return the seconds of so many steps."""
        start = time.perf_counter()
        self.steps(count)
        return time.perf_counter() - start


class InALoop(Contender):
    """Three lines: Step.from_compiled, Loop, fit."""

    loop: mk.train.Loop | None = None

    def steps(self, count: int) -> None:
        if self.loop is None:
            self.loop = mk.train.Loop(self.strategy, mk.train.Step.from_compiled(self.model))
        self.loop.fit(self.data, epochs=1, steps_per_epoch=count, verbose=0)


class ByHand(Contender):
    """`strategy.run` on distributed batches, one call per step; metrics are means of the replicas' means."""

    iterator: Any = None

    def steps(self, count: int) -> None:
        if self.iterator is None:
            with self.strategy.scope():
                self.model.c_optimizer.build(self.model.critic.trainable_variables)
                self.model.g_optimizer.build(self.model.generator.trainable_variables)
            self.iterator = iter(self.strategy.experimental_distribute_dataset(self.data))
            self.step = tf.function(lambda batch: self.strategy.run(self.on_replica, args=(batch,)), autograph=False)
        self.model.reset_metrics()
        for _ in range(count):
            self.step(next(self.iterator))
        float(self.model.c_loss.result())

    def on_replica(self, batch: tf.Tensor) -> None:
        model = self.model
        for _ in range(2):
            c_loss, gradients = model.critic_gradients(batch)
            self.apply(model.c_optimizer, gradients, model.critic)
        g_loss, gradients = model.generator_gradients(batch)
        self.apply(model.g_optimizer, gradients, model.generator)
        model.c_loss.update_state(c_loss)
        model.g_loss.update_state(g_loss)

    def apply(self, optimizer: Any, gradients: Any, part: keras.Model) -> None:
        # Keras's optimizer sums the gradients of all replicas.
        optimizer.apply([gradient / self.replicas for gradient in gradients], part.trainable_variables)


CONTENDERS = {"as it is, in a Loop": "InALoop", "loop by hand": "ByHand"}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4], help="virtual CPU devices")
    parser.add_argument("--batch-size", type=int, default=256, help="global batch")
    parser.add_argument("--units", type=int, default=128, help="of each hidden layer")
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--rounds", type=int, default=5, help="of blocks, and of fresh processes for the first step")
    options = parsed(parser)

    rows: list[dict[str, Any]] = []
    for replicas in options.replicas:
        arguments = {"replicas": replicas, "batch_size": options.batch_size, "units": options.units}

        def remote(kind: str, arguments: dict[str, int] = arguments) -> Group:
            return Group(f"own_train_step:{kind}", Member(arguments))

        def first(kind: str, remote: Any = remote) -> float:
            with remote(kind) as process:
                return process.call("seconds", count=1)

        firsts = values_in_turns({name: partial(first, kind) for name, kind in CONTENDERS.items()}, options.rounds)
        with contextlib.ExitStack() as stack:
            ready = {name: stack.enter_context(remote(kind)) for name, kind in CONTENDERS.items()}
            blocks = {name: partial(process.call, "seconds", count=options.steps) for name, process in ready.items()}
            times = values_in_turns(blocks, options.rounds, warm_up=1)
        for what, found, count in (("first step", firsts, 1), ("step", times, options.steps)):
            for name, values in found.items():
                row = {"what": f"{what}, {replicas} replicas: {name}"}
                row |= {"measured": what, "replicas": replicas, "contender": CONTENDERS[name]}
                rows.append({**row, **figures([value / count for value in values], smaller_is_better=True)})
            rows[-2]["ratio"] = rows[-2]["median"] / rows[-1]["median"]
    title = f"WGAN-GP, three updates per batch of {options.batch_size}, {options.units} units: seconds"
    columns = [
        *(Column("what", "what"), Column("best", "best", ".4f"), Column("median", "median", ".4f")),
        *(Column("n", "n", "d"), Column("spread", "spread", ".0%"), Column("ratio", "of by hand", ".2f")),
    ]
    present(report_of("own_train_step", title, columns, rows, unit="seconds"), options)


if __name__ == "__main__":
    main()
