"""Where the time of a training step goes: waiting for input, computing, all-reducing, Python.

    python examples/benchmarks/anatomy.py --model mnist_cnn --devices cpu:2

To take your own training apart, copy this file beside your script; it needs nothing but mirrorkit:

    from anatomy import anatomy
    print(anatomy(loop, train))
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._types import Batch, Nest
from mirrorkit.arguments import whole_number
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_parameter_server, local_replica, of_all_workers
from mirrorkit.train import Calls, EpochIterator, Input, OwnRows, Step, all_reduce
from mirrorkit.variables import unchanged

_SECONDS = 0.25  # of one measurement, about
_MOST = 1000  # steps or batches in it
_LEAST_STEPS = 8  # in it
_LATE = 1.2  # a worker that takes longer than this multiple of the median is named

PARTS = ("input", "compute", "all_reduce", "update", "python")

_BOUND = {
    "input": "input-bound: the devices wait for data. Keep the set on them (mk.data.resident), or make batches faster "
    "(cache, map before, fewer augmentations, more shards).",
    "compute": "compute-bound: the devices are busy with the model. More devices, lower precision or a smaller model "
    "are what helps.",
    "all_reduce": "communication-bound: replicas wait for one another's gradients. Larger batches or accumulate=k mean "
    "fewer messages; see also communication= of mk.strategy.create.",
    "update": "update-bound: most time goes into the optimizer. Larger batches or accumulate=k mean fewer updates.",
    "python": "Python-bound: a call is too short for its dispatch. Take more steps in one: Loop(steps_per_call=...).",
}


@dataclass(frozen=True)
class Anatomy:
    """The parts of one training step (one update), in seconds. `str(anatomy)` is a table.

    ```python
    found = anatomy(loop, train)
    if found.bound == "input":
        print(f"waits for data: {found.shares['input']:.0%} of {1e3 * found.seconds:.1f} ms")
    ```

    Attributes:
        seconds: the time of a step in a loop.
        parts: the seconds of each part: waiting for the input, computing the replicas' sums, all-reducing them, writing
            the update, and dispatching the call from Python. Each is a difference of two measurements, at least 0.
        input_alone: the seconds that the input takes for a batch when nothing else uses the cores. Most of this
            overlaps the computation.
        steps_per_call: the number of steps over which the dispatch of a call is spread.
        spread: the range of the measurements of a step, as a fraction of the median.
        workers: for each worker, the larger of its own input and computation, in seconds per step.
        input_rates: for each worker, the examples per second that its input alone delivers to its replicas. If every
            worker reads all the data, only its replicas' rows count.
        examples_per_second: of the training, on all workers.
    """

    seconds: float
    parts: Mapping[str, float]
    input_alone: float
    steps_per_call: int
    spread: float
    workers: Sequence[float] = ()
    input_rates: Sequence[float] = ()
    examples_per_second: float = math.nan

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of their sum."""
        whole = sum(self.parts.values()) or 1.0
        return {name: seconds / whole for name, seconds in self.parts.items()}

    @property
    def bound(self) -> str:
        """The largest part: one of PARTS."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def straggler(self) -> int | None:
        """The worker that slows the others down, a fifth slower than the median; None if there is none."""
        if len(self.workers) < 2:
            return None
        slowest = max(range(len(self.workers)), key=lambda i: self.workers[i])
        others = sorted(value for i, value in enumerate(self.workers) if i != slowest)
        return slowest if self.workers[slowest] > _LATE * others[len(others) // 2] else None

    def __str__(self) -> str:
        """A line for each part, the verdict, and of several workers the input rates and the straggler, if any."""
        lines = [
            f"step {1e3 * self.seconds:.3f} ms (spread {self.spread:.0%}), {self.steps_per_call} steps per call; "
            f"input alone {1e3 * self.input_alone:.3f} ms",
            f"{'part':10}{'ms':>8}{'share':>7}",
            *(f"{p.replace('_', '-'):10}{1e3 * self.parts[p]:8.3f}{self.shares[p]:7.0%}" for p in PARTS),
            _BOUND[self.bound],
        ]
        if len(self.input_rates) > 1:
            lines.append(rates_line("Input alone", self.input_rates, self.examples_per_second))
        if self.straggler is not None:
            alone = ", ".join(f"{1e3 * seconds:.3f}" for seconds in self.workers)
            lines.append(f"worker {self.straggler} holds the others up (input or compute alone, ms: {alone})")
        return "\n".join(lines)


def anatomy(loop: Any, data: Any, *, repeats: int = 10) -> Anatomy:
    """Time the parts of a training step, by running variants that leave parts out, in turns.

    ```python
    print(anatomy(loop, train, repeats=2))
    ```

    Weights, optimizer, random generators and a recipe's position are restored. A `tf.data.Dataset` of your own is read,
    so its shuffle advances. On several workers all of them must call it. XLA compiles the steps
    as in the loop, but no whole calls: one program has no parts to leave out.

    Args:
        loop: a `mk.train.Loop` with a `mk.train.Step`.
        data: the data of its `fit`.
        repeats: measurements of each variant; the fastest counts, since other programs only slow it down.

    Raises:
        StepError: a step of your own, whose parts are unknown; data that the step cannot train on; no repeats.
    """
    whole_number("repeats", repeats, StepError)
    if is_parameter_server(loop.strategy):
        raise StepError(
            "anatomy measures steps that all replicas take together; under parameter servers there are none."
        )
    if not isinstance(loop.step, Step):
        raise StepError(f"anatomy needs a mk.train.Step; the parts of {type(loop.step).__name__} are unknown.")
    loop.warm_up(data)  # leaves all as it was, but finds how long the loop's calls are to be
    with unchanged(loop.step.variables):
        variants = Variants(loop.strategy, loop.step, data)
        # The slowest worker's numbers: variants that reduce must run the same steps on all.
        steps = {name: int(min(of_all_workers(loop.strategy, n))) for name, n in _steps_worth(variants).items()}
        timed = _timed(variants, steps, repeats)
        single = _timed(variants, {"fixed": 1}, 8 * repeats)["fixed"]
    dispatch, net = without_dispatch({name: min(values) for name, values in timed.items()}, min(single), steps)
    python = dispatch * loop.step.accumulate / loop.steps_per_call
    whole = sorted(timed["whole"])
    seconds = net["whole"] + python
    return Anatomy(
        seconds=seconds,
        parts={**parts_of(net), "python": python},
        input_alone=net["input"],
        steps_per_call=loop.steps_per_call,
        spread=(whole[-1] - whole[0]) / whole[len(whole) // 2],
        workers=of_all_workers(loop.strategy, max(net["input"], net["compute"])),
        # With the dispatch, which is little: without it nothing might be left.
        input_rates=of_all_workers(loop.strategy, variants.own / min(timed["input"])),
        examples_per_second=sum(of_all_workers(loop.strategy, variants.own)) / seconds,
    )


def without_dispatch(
    timed: Mapping[str, float], single: float, steps: Mapping[str, int]
) -> tuple[float, dict[str, float]]:
    """Take the cost of the calls out of seconds per step, each of which holds a part of it; returns both.

    `single` is the time of a call of one step of the variant "fixed"; `steps` is how many each variant's calls had.
    """
    # single = dispatch + step; timed = dispatch / steps + step
    dispatch = max(0.0, (single - timed["fixed"]) / (1 - 1 / steps["fixed"]))
    return dispatch, {name: max(0.0, seconds - dispatch / steps[name]) for name, seconds in timed.items()}


def parts_of(net: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step from seconds per step of the variants: see `Variants`."""
    parts = {
        "input": net["whole"] - net["fixed"],
        "compute": net["compute"],
        "all_reduce": net["reduce"] - net["compute"],
        "update": net["fixed"] - net["reduce"],
    }
    return {name: max(0.0, seconds) for name, seconds in parts.items()}


def _timed(variants: Variants, steps: Mapping[str, int], repeats: int) -> dict[str, list[float]]:
    rounds = [{name: variants.seconds(name, n) for name, n in steps.items()} for _ in range(repeats)]
    return {name: [seconds[name] for seconds in rounds] for name in steps}


def _steps_worth(variants: Variants) -> dict[str, int]:
    steps = {}
    for name in variants.names:
        variants.seconds(name, 1)  # compiles
        most = variants.most(name)
        steps[name] = min(most, max(_LEAST_STEPS, round(_SECONDS / variants.seconds(name, min(2, most)))))
    return steps


class Variants:
    """What is timed; `seconds` takes one of `names`.

    | name | what runs |
    |---|---|
    | whole | the step on the data |
    | input | the data alone: batches are made, cut and brought to the devices |
    | fixed | the step on one batch that lies on the devices |
    | reduce | the same without the update |
    | compute | the same without the reduction too |

    `own` is the number of rows that this worker's replicas take in a step.
    """

    names = ("whole", "input", "fixed", "reduce", "compute")

    def __init__(self, strategy: tf.distribute.Strategy, step: Step, data: Any) -> None:
        self._strategy = strategy
        self._step = step.supervised(strategy)
        self._epochs = Epochs(strategy, data)
        self._step.prepare(self._epochs.element_spec)
        self._calls = Calls(strategy, self._step)
        self._calls.jit_compile = False
        self._input = InputAlone(strategy, data)
        self.own = self._input.own * step.accumulate
        self._updates = min(_MOST, self._epochs.most // step.accumulate)  # of one epoch
        if self._updates == 0:
            raise StepError(
                f"anatomy times updates of {step.accumulate} whole batches each (accumulate={step.accumulate}); an "
                f"epoch has {self._epochs.most}. Give it more data, or a smaller global batch."
            )
        self._variants = {
            "fixed": self._many(self._fixed),
            "reduce": self._many(lambda rows: self._sums(rows, reduce=True)),
            "compute": self._many(lambda rows: self._sums(rows, reduce=False)),
        }

    def most(self, name: str) -> int:
        """Return the largest number of steps in a call."""
        return _MOST if name in self._variants else self._updates

    def seconds(self, name: str, steps: int) -> float:
        """Return the seconds per step (per update, where it takes several batches) of a call of `steps` steps."""
        of_all_workers(self._strategy, 0.0)  # all begin at once: a worker's seconds hold no wait for a late one
        if name not in self._variants:
            batches = steps * self._step.accumulate
            read = self._train if name == "whole" else self._input.seconds
            read(batches)  # what was prefetched before the measurement must not count as fast input
            return read(batches) / steps
        start = time.perf_counter()
        float(self._variants[name](self._input.rows, tf.constant(steps)))  # waits for the end
        return (time.perf_counter() - start) / steps

    def _train(self, batches: int) -> float:
        totals = tf.zeros([self._step.totals_size()], tf.float64)
        return self._calls.call("train", self._epochs.with_left(batches), totals, batches).seconds

    def _many(self, one: Any) -> Any:
        @tf.function(autograph=False)
        def many(rows: Any, steps: tf.Tensor) -> tf.Tensor:
            def once(index: tf.Tensor, last: Any) -> Any:
                with tf.control_dependencies([index]):
                    return one(rows)

            return of_this_worker(self._strategy, repeated(self._strategy, once, steps))

        return many

    def _fixed(self, rows: Batch) -> Any:
        totals = self._step.train([_Fixed(self._strategy, rows)] * self._step.accumulate)
        return self._strategy.run(lambda: tf.cast(totals[0], tf.float32))

    def _sums(self, rows: Batch, *, reduce: bool) -> Any:
        def on_replica(rows: Batch) -> tf.Tensor:
            parts = [self._step.sums(OwnRows(rows), part) for part in range(self._step.accumulate)]
            return touched([*parts[:-1], all_reduce(parts[-1]) if reduce else parts[-1]])

        return self._strategy.run(on_replica, args=(rows,))


class _Fixed(OwnRows):
    """Rows that lie on every replica's device already: values of the strategy, of which each replica takes its own."""

    def __init__(self, strategy: tf.distribute.Strategy, rows: Batch) -> None:
        self._rows, self._strategy = rows, strategy  # not as OwnRows sets them, which compares tensors

    def rows(self) -> Batch:
        """Return this replica's."""
        own = [self._strategy.experimental_local_results(value) for value in tf.nest.flatten(self._rows)]
        return tf.nest.pack_sequence_as(self._rows, [values[local_replica(self._strategy)] for values in own])

    def examples(self) -> tf.Tensor:
        """Return the number of examples; they are as many on each replica."""
        (own, *_) = tf.nest.flatten(self.rows())
        return tf.shape(own)[0] * self._strategy.num_replicas_in_sync

    def rows_or_all(self) -> tuple[Batch, bool | tf.Tensor]:
        """Return this replica's; they are as many on each."""
        return self.rows(), False


class Epochs:
    """The batches of a set that have the size of its first one, epoch after epoch.

    A smaller batch at the end of an epoch is left out: measurements are compared with those of a step on a whole one.
    """

    def __init__(self, strategy: tf.distribute.Strategy, data: Any) -> None:
        self._input = Input(strategy, data)
        self.element_spec = self._input.element_spec
        self._number = 0
        self._epoch = self._input.epoch(0)
        self._alike = _alike(self._epoch)
        self.most = _MOST if self._alike is None else self._alike

    def with_left(self, batches: int) -> EpochIterator:
        """Return the current epoch, or the next one if fewer than `batches` are left in it."""
        if self._alike is not None and self._epoch.position + batches > self._alike:
            self._number += 1
            self._epoch = self._input.epoch(self._number)
        return self._epoch


class InputAlone:
    """Reads the batches of a set; on several workers, each what it reads in a training.

    Attributes:
        rows: each replica's rows of the first batch, on its device.
        own: how many rows of a batch this worker's replicas take.
        most: how many batches can be read at once.
    """

    def __init__(self, strategy: tf.distribute.Strategy, data: Any) -> None:
        self._strategy = strategy
        self._epochs = Epochs(strategy, data)
        self.most = self._epochs.most
        first = self._epochs.with_left(1)
        self._take, self._size = first.batch, first.size_of(0)
        self.rows = self._first_rows(first.source)
        first.position += 1
        of_replicas = strategy.experimental_local_results(tf.nest.flatten(self.rows)[0])
        self.own = sum(int(tf.shape(rows)[0]) for rows in of_replicas)
        self._read = tf.function(self._many, autograph=False)

    def seconds(self, batches: int) -> float:
        """Return the seconds that this worker takes to read this many batches."""
        epoch = self._epochs.with_left(batches)
        start = time.perf_counter()
        float(self._read(epoch.source, tf.constant(epoch.position, tf.int64), tf.constant(batches, tf.int64)))
        seconds = time.perf_counter() - start
        epoch.position += batches
        return seconds

    def rates(self, *, repeats: int = 5) -> list[float]:
        """Return, for each worker, the examples per second that reach its replicas. Collective."""
        self.seconds(1)  # compiles
        few = min(2, self.most)
        batches = max(1, min(self.most, round(_SECONDS * few / self.seconds(few))))
        self.seconds(batches)  # what was prefetched before a measurement must not count as fast input
        timed = []
        for _ in range(repeats):
            of_all_workers(self._strategy, 0.0)  # all read at the same time, as in a training
            timed.append(self.seconds(batches))
        return of_all_workers(self._strategy, self.own * batches / min(timed))

    def _first_rows(self, source: Nest) -> Batch:
        @tf.function(autograph=False)
        def rows(source: Nest) -> Batch:
            return self._strategy.run(self._take(source, tf.constant(0, tf.int64), self._size).rows)

        return rows(source)

    def _many(self, source: Nest, first: tf.Tensor, batches: tf.Tensor) -> tf.Tensor:
        def read(index: tf.Tensor, last: Any) -> Any:
            batch = self._take(source, first + index, self._size)
            return self._strategy.run(lambda: touched(batch.rows()))

        return of_this_worker(self._strategy, repeated(self._strategy, read, batches))


def repeated(strategy: tf.distribute.Strategy, once: Callable[[tf.Tensor, Any], Any], times: tf.Tensor) -> Any:
    """Call `once(index, last)` `times` times in sequence, within a `tf.function`, and return the last result.

    A result is a float32 number on each replica; `last` is the previous one, 0 at first.
    """

    def body(index: tf.Tensor, last: Any) -> tuple[Any, ...]:
        return index + 1, once(index, last)

    start = (tf.zeros([], times.dtype), strategy.run(lambda: tf.zeros([])))
    return tf.while_loop(lambda index, _: index < times, body, start, parallel_iterations=1)[1]


def touched(values: Any) -> tf.Tensor:
    """Return one number that depends on every tensor, so that TensorFlow does not leave any out."""
    firsts = [tf.reshape(value, [-1])[:1] for value in tf.nest.flatten(values)]  # of no rows, none
    return tf.add_n([tf.reduce_sum(tf.cast(first, tf.float32)) for first in firsts])


def of_this_worker(strategy: tf.distribute.Strategy, values: Any) -> tf.Tensor:
    """Return the sum over this worker's replicas: over those of all, each worker would take as long as the slowest."""
    return tf.add_n(strategy.experimental_local_results(values))


def _alike(epoch: EpochIterator) -> int | None:
    """Return how many batches of an epoch have the size of the first; None where the number of batches is unknown."""
    if epoch.left is None:
        return None
    size = epoch.size_of(0)
    return sum(1 for _ in itertools.takewhile(lambda number: epoch.size_of(number) == size, range(epoch.left)))


def rates_line(what: str, rates: Sequence[float], taken: float) -> str:
    """Say how many examples per second each worker's input brings alone, and how many the training takes."""
    each = " + ".join(f"{rate:,.0f}" for rate in rates)
    return f"{what}, by worker: {each} = {sum(rates):,.0f} examples/s; the training takes {taken:,.0f}."


def main() -> None:
    """Take the training of a model of the zoo apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist_cnn", help="a name of mk.models")
    parser.add_argument("--devices", default="cpu:2", help="as for mk.strategy.create")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--examples", type=int, default=10_240, help="synthetic ones")
    parser.add_argument("--streamed", action="store_true", help="tf.data makes the batches")
    parser.add_argument("--repeats", type=int, default=10, help="measurements of each variant")
    options = parser.parse_args()
    strategy = mk.strategy.create(devices=options.devices)
    with strategy.scope():
        model, optimizer = mk.models.create(options.model), keras.optimizers.Adam()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"]))
    split = mk.data.synthetic(model.input_shape[1:], train=options.examples, test=1).train
    recipe = mk.data.batches if options.streamed else mk.data.resident
    train = recipe(split, global_batch_size=options.global_batch_size, shuffle=True, seed=0, drop_remainder=True)
    print(anatomy(loop, train, repeats=options.repeats))


if __name__ == "__main__":
    main()
