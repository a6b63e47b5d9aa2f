"""Train a step on given batches under a strategy, and remember every update: what `assert_equivalent` compares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.testing.equivalence_data import as_dataset, cut, size_of
from mirrorkit.train import Loop, Step, variables_of
from mirrorkit.variables import copies, native, path, unchanged

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Arrangement:
    """How to create a step, and into how many shards one replica splits each batch."""

    make_step: Callable[[], Any]
    seed: int
    shards: int = 1

    def step_for(self, strategy: tf.distribute.Strategy) -> Any:
        """Make the step in the strategy's scope."""
        keras.utils.set_random_seed(self.seed)
        with strategy.scope():
            return self.make_step()


@dataclass(frozen=True)
class Trial:
    """One training of a step: its global batches, and whether its weights start with a change in the last place."""

    batches: Sequence[Any]
    nudge: int | None = None


@dataclass
class Run:
    """One training.

    Attributes:
        step: what was trained; its variables have their `first` values again.
        sizes: examples in each global batch.
        names: paths of all variables of the step, made unique.
        trainable: paths of the trainable variables that are compared.
        first: the variables' values before the first update, by path.
        updates: their values after each update, on the first replica.
        disagreeing: paths of the variables whose copies differ between replicas at the end; weights first.
        logs: the logs of the whole run.
    """

    step: Any
    strategy: tf.distribute.Strategy
    sizes: list[int]
    names: list[str]
    trainable: set[str]
    first: Values
    updates: list[Values] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)
    logs: dict[str, Any] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self.strategy.num_replicas_in_sync

    @property
    def replicas_agree(self) -> bool:
        """Whether all copies of all variables have the same bits."""
        return not self.disagreeing


class Comparison:
    """How much a run differs from the one that it should equal.

    Args:
        expected: the reference.
        found: the run to judge.
    """

    def __init__(self, expected: Run, found: Run) -> None:
        self.expected, self.found = expected, found
        self.by_name = distances(found.updates[-1], expected.updates[-1])
        self.by_name |= {f"log {k}": v for k, v in distances(found.logs, expected.logs).items()}
        self.worst = max(self.by_name, key=lambda name: self.by_name[name])
        self.difference = self.by_name[self.worst]


def distances(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, float]:
    """Return for each name the largest difference; of floats relative to the largest value where that is above 1."""
    result = {}
    for name, value in expected.items():
        one, other = np.asarray(found[name], np.float64), np.asarray(value, np.float64)
        largest = np.max(np.abs(one - other), initial=0.0)
        if np.asarray(value).dtype.kind == "f":
            largest /= max(1.0, np.max(np.abs(other), initial=0.0))
        result[name] = float(largest) if np.isfinite(largest) else float("inf")
    return result


def train(
    arrangement: Arrangement,
    strategy: tf.distribute.Strategy,
    trials: Sequence[Trial],
    *,
    ignore: Sequence[str] = (),
    like: Run | None = None,
) -> list[Run]:
    """Train one step several times from the same start.

    Args:
        arrangement: the step.
        strategy: from `mk.strategy.create`.
        trials: what to train it on.
        ignore: parts of the paths of variables to leave out.
        like: an earlier run of the same step, whose variable names are reused: Keras numbers layers across models.
    """
    step = arrangement.step_for(strategy)
    trained, shards = step, arrangement.shards
    if shards > 1 and isinstance(step, Step):
        # Accumulation is one device that computes N shards for an update, with the same numbers for the seeds.
        step.supervised(strategy, shards)
    elif shards > 1:
        trained = _InShards(step, shards)
    loop = Loop(strategy, trained, steps_per_call=1)
    variables = variables_of(step, "nothing could be compared")
    variables = getattr(step, "saved_variables", variables)  # with whole slots, where these are sharded
    names = _names(variables) if like is None else like.names
    if len(names) != len(variables):
        raise StepError(
            f"make_step created a step with {len(names)} variables, and then one with {len(variables)}: "
            f"{_names(variables)}. It must create the same step each time."
        )
    unknown = [part for part in ignore if not any(part in name for name in names)]
    if unknown:
        raise StepError(f"ignore={unknown} matches none of the step's variables. They are: {', '.join(names)}.")
    named = zip(names, variables, strict=True)
    watched = {name: variable for name, variable in named if not any(part in name for part in ignore)}
    trainable = {name for name, v in watched.items() if getattr(v, "trainable", False)}
    runs = []
    for trial in trials:
        sizes = [size_of(batch) for batch in trial.batches]
        run = Run(step, strategy, sizes, names, trainable, _read(watched))
        batches = trial.batches
        if trained is step and shards > 1:
            batches = [shard for batch in batches for shard in cut(batch, shards)]
        with unchanged(step.variables):
            if trial.nudge is not None:
                _nudge([watched[name] for name in sorted(trainable)], seed=trial.nudge)
            recorder = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs, run=run: run.updates.append(_read(watched))
            )
            report = loop.fit(as_dataset(batches), callbacks=[recorder], verbose=0)
            run.logs = {name: values[-1] for name, values in report.history.items()}
            run.disagreeing = _disagreeing(watched, trainable)
        runs.append(run)
    return runs


def _nudge(variables: Sequence[Any], *, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for variable in variables:
        value = np.asarray(native(variable))
        variable.assign(np.nextafter(value, rng.choice([-np.inf, np.inf], value.shape).astype(value.dtype)))


class _InShards:
    """A custom step on one replica that computes its batch in N parts, each as replica number `part` would."""

    def __init__(self, step: Any, shards: int) -> None:
        if hasattr(step, "train") or not hasattr(step, "compute"):
            raise StepError(
                f'reference="shards" needs the compute of a step; {type(step).__name__} trains by a method of its own. '
                "Let make_step return the mk.train.Steps within it, one after the other, if it has some; or let the "
                'data hold its random numbers, and use reference="batch".'
            )
        self._step, self._shards = step, shards
        self.build, self.update = step.build, step.update

    def compute(self, batch: Any) -> Any:
        size = tf.shape(tf.nest.flatten(batch)[0])[0]
        share = -(-size // self._shards)
        sums = []
        for i in range(self._shards):
            shard = tf.nest.map_structure(lambda t, i=i: t[i * share : (i + 1) * share], batch)
            sums.append(self._step.compute(shard, **self._number(i)))
        return tf.nest.map_structure(lambda *parts: tf.add_n(parts), *sums)

    def _number(self, i: int) -> dict[str, int]:
        return {"part": i} if "part" in inspect.signature(self._step.compute).parameters else {}


def _names(variables: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for variable in variables:
        name = path(variable)
        while name in names:
            name += "'"
        names.append(name)
    return names


def _read(variables: Mapping[str, Any]) -> Values:
    return {name: np.asarray(copies(variable)[0]) for name, variable in variables.items()}


def _disagreeing(variables: Mapping[str, Any], trainable: set[str]) -> list[str]:
    def differ(variable: Any) -> bool:
        first, *others = map(np.asarray, copies(variable))
        return not all(np.array_equal(first, other, equal_nan=first.dtype.kind == "f") for other in others)

    return sorted((name for name, v in variables.items() if differ(v)), key=lambda name: name not in trainable)
