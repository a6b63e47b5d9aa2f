"""Where the time of a training step goes: waiting for input, computing, all-reducing, Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorkit.bench.report import Column, rates_line, table
from mirrorkit.bench.turns import values_in_turns
from mirrorkit.errors import StepError
from mirrorkit.whole import whole_number

if TYPE_CHECKING:
    from mirrorkit.bench.variants import Variants

_SECONDS = 0.25  # of one measurement, about
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
    anatomy = mk.bench.anatomy(loop, train)
    if anatomy.bound == "input":
        print(f"waits for data: {anatomy.shares['input']:.0%} of {1e3 * anatomy.seconds:.1f} ms")
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
        columns = Column("part", "part"), Column("ms", "ms", ".3f"), Column("share", "share", ".0%")
        rows = [{"part": p.replace("_", "-"), "ms": 1e3 * self.parts[p], "share": self.shares[p]} for p in PARTS]
        lines = [
            f"step {1e3 * self.seconds:.3f} ms (spread {self.spread:.0%}), {self.steps_per_call} steps per call; "
            f"input alone {1e3 * self.input_alone:.3f} ms",
            table(columns, rows),
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
    print(mk.bench.anatomy(loop, train, repeats=2))
    ```

    Weights, optimizer, random generators and a recipe's position are restored. A `tf.data.Dataset` of your own is read,
    so its shuffle advances. On several workers all of them must call it. A `Loop(..., jit_compile=True)` is measured
    without it: one program has no parts to leave out.

    Args:
        loop: a `mk.train.Loop` with a `mk.train.Step`.
        data: the data of its `fit`.
        repeats: measurements of each variant; the fastest counts, since other programs only slow it down.

    Raises:
        StepError: a step of your own, whose parts are unknown; data that the step cannot train on; no repeats.
    """
    from mirrorkit.bench.variants import Variants
    from mirrorkit.strategy import is_parameter_server, of_all_workers
    from mirrorkit.train import Step
    from mirrorkit.variables import unchanged

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
    return values_in_turns({name: partial(variants.seconds, name, n) for name, n in steps.items()}, repeats)


def _steps_worth(variants: Variants) -> dict[str, int]:
    steps = {}
    for name in variants.names:
        variants.seconds(name, 1)  # compiles
        most = variants.most(name)
        steps[name] = min(most, max(_LEAST_STEPS, round(_SECONDS / variants.seconds(name, min(2, most)))))
    return steps
