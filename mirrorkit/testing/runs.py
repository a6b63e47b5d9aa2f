"""Train a step on given global batches under a strategy, for `assert_equivalent`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train import Loop, Step, shards as shards_of, variables_of
from mirrorkit.variables import copies, path, unchanged


class Run(NamedTuple):
    """One training. Variables are known by their position: Keras numbers paths across models.

    Attributes:
        names: paths of the variables, and of the logs "log loss", ...
        start: the weights on the first replica before the first step.
        end: all variables on the first replica after the last step, and the logs.
        parted: paths of the variables whose copies differ between replicas after the last step.
    """

    names: list[str]
    start: list[Any]
    end: list[Any]
    parted: list[str]

    def differences(self, expected: Run) -> list[float]:
        """Return how much each variable and each log differs."""
        return [_difference(*pair) for pair in zip(self.end, expected.end, strict=True)]


def _difference(found: Any, expected: Any) -> float:
    """Return the largest difference; of floats relative to the largest value where that is above 1."""
    wanted = np.asarray(expected)
    scale = np.max(np.abs(wanted), initial=1) if wanted.dtype.kind == "f" else 1
    difference = np.max(np.abs(np.asarray(found, np.float64) - wanted), initial=0) / scale
    return float(np.nan_to_num(difference, nan=np.inf))


def train(
    make_step: Callable[[], Any],
    batches: Sequence[Any],
    strategy: Any,
    seed: int,
    ignore: Sequence[str],
    shards: int = 1,
    controls: int = 0,
) -> list[Run]:
    """Train a step; then, as controls, several times from weights that differ from the same start in the last place.

    Args:
        make_step: called in the strategy's scope, after all seeds were set.
        batches: the global batches, as NumPy nests.
        strategy: from `mk.strategy.create`.
        seed: for `keras.utils.set_random_seed`.
        ignore: parts of the paths of variables that are not compared.
        shards: into how many shards one replica splits each batch.
        controls: how many more trainings.
    """
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        step = trained = make_step()
    if shards > 1 and isinstance(step, Step):
        # Accumulation is one device that computes several shards for an update, with the same numbers for the seeds.
        step.supervised(strategy, shards)
        batches = list(itertools.chain.from_iterable(shards_of(batch, shards) for batch in batches))
    elif shards > 1:
        trained = _InShards(step, shards)
    loop = Loop(strategy, trained, steps_per_call=1)
    changed = variables_of(step, "nothing could be compared")
    variables = getattr(step, "saved_variables", changed)  # with whole slots, where these are sharded
    paths = ", ".join(map(path, variables))
    if unknown := [part for part in ignore if part not in paths]:
        raise StepError(f"ignore={unknown} matches none of the step's variables. They are: {paths}.")
    compared = [v for v in variables if not any(part in path(v) for part in ignore)]
    weights = [v for v in compared if getattr(v, "trainable", False)]

    spec = tf.nest.map_structure(lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), batches[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    runs = []
    for number in range(1 + controls):
        start = _read(weights)
        with unchanged(changed):
            if number:
                for weight, value in zip(weights, start, strict=True):
                    towards = np.random.default_rng(number).normal(size=value.shape).astype(value.dtype)
                    weight.assign(np.nextafter(value, towards))
            history = loop.fit(dataset, verbose=0).history
            names = [*map(path, compared), *(f"log {name}" for name in history)]
            end = [*_read(compared), *(values[-1] for values in history.values())]
            parted = [path(v) for v in compared if len({np.asarray(copy).tobytes() for copy in copies(v)}) > 1]
        runs.append(Run(names, start, end, parted))
    return runs


def _read(variables: Sequence[Any]) -> list[Any]:
    return [np.asarray(copies(variable)[0]) for variable in variables]


class _InShards:
    """A custom step on one replica that computes its batch in shards, one after the other."""

    def __init__(self, step: Any, shards: int) -> None:
        if hasattr(step, "train"):
            raise StepError(
                f'reference="shards" needs the compute of a step; {type(step).__name__} trains by a method of its own. '
                "Let make_step return the mk.train.Steps within it, one after the other, if it has some; or let the "
                'data hold its random numbers, and use reference="batch".'
            )
        self._step, self._shards = step, shards
        self.build, self.update = step.build, step.update

    def compute(self, batch: Any) -> Any:
        sums = [self._step.compute(shard) for shard in shards_of(batch, self._shards)]
        return tf.nest.map_structure(lambda *parts: tf.add_n(parts), *sums)
