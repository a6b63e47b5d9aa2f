"""Prove that a step gives the same results on N replicas as on one: `Step` with any options, or a custom step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import checks_arguments
from mirrorkit.data import Recipe
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.testing.local import virtual_replicas
from mirrorkit.testing.runs import train


@dataclass(frozen=True)
class Equivalence:
    """What `assert_equivalent` measured; a difference is the largest over all variables and logs.

    ```python
    found = mk.testing.assert_equivalent(make_step, train, replicas=[2], steps=4)
    print(found)   # such as: after 4 steps: 2 replicas 5.1e-08; allowed 1.0e-06 (control 5.1e-08)
    print(list(found.differences), found.differences[2] <= found.bar)  # [2] True
    ```

    Differences of floats are divided by the largest value of their variable if that is above 1.

    Attributes:
        differences: for each number of replicas above 1 the difference from the reference, after the last step.
        control: the difference on one replica between weights that differ in the last place.
        bar: the largest difference allowed.
        steps: the number of global batches trained on.
    """

    differences: dict[int, float]
    control: float
    bar: float
    steps: int

    def __str__(self) -> str:
        """One line."""
        found = ", ".join(f"{n} replicas {value:.1e}" for n, value in self.differences.items())
        return f"after {self.steps} steps: {found}; allowed {self.bar:.1e} (control {self.control:.1e})"


@checks_arguments(StepError)
def assert_equivalent(
    make_step: Callable[[], Any],
    data: Any,
    *,
    replicas: Sequence[int] = (1, 2, 4),
    kind: str = "mirrored",
    steps: int = 20,
    global_batch_size: int | None = None,
    reference: str = "batch",
    uneven: bool = True,
    ignore: Sequence[str] = (),
    seed: int = 0,
    floor: float = 1e-6,
) -> Equivalence:
    """Train the same step on 1 and on N virtual replicas with `mk.train.Loop`, and compare all variables and logs.

    ```python
    def make_step():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        return mk.train.Step(model, keras.optimizers.Adam(0.01), loss="mse")

    print(mk.testing.assert_equivalent(make_step, (x, y), global_batch_size=16))
    ```

    The tolerance is measured: three times the difference that rounding makes on one replica, and at least `floor`. To
    measure it, the same training is run from weights that differ in the last place. If a step fails, the error names
    what differs; docs/equivalence.md lists likely causes.

    Args:
        make_step: called in each strategy's scope, after all seeds were set; returns `mk.train.Step(...)` or a custom
            step that has `variables`. Take a small smooth net: ReLU and max pooling amplify rounding at ties.
        data: a recipe, a `tf.data.Dataset` of global batches, or arrays `(x, y)` or `(x, y, sample_weight)`. It is
            repeated if it holds fewer than `steps` batches.
        replicas: numbers of virtual replicas, to be compared with one. The CPU is split for the largest of them when
            TensorFlow has not started.
        kind: the strategy, as in `mk.strategy.create`.
        steps: global batches to train on.
        global_batch_size: for arrays only.
        reference: "batch": one replica that computes the whole batch. "shards": one that computes the same shards as
            the N replicas, one after the other, for nets whose result depends on how a batch is split (BatchNorm,
            Dropout, augmentation, float16); a custom step must not draw random numbers then.
        uneven: drop the last example of every second batch that replicas would share equally.
        ignore: parts of the paths of variables that are not compared. Use it for parameters whose true gradient is
            zero, such as an attention's key bias: they hold only rounding errors. Keras numbers layers of one class, so
            name yours.
        seed: for `keras.utils.set_random_seed`, before each `make_step()`.
        floor: the smallest tolerance.

    Returns:
        The measured differences.

    Raises:
        AssertionError: the results differ; or the step trains nothing, or amplifies rounding so much that nothing can
            be proven.
        StepError: arguments that do not fit each other, a step without `variables`.
        DeviceError: TensorFlow has already started with fewer CPU devices.
    """
    if reference not in ("batch", "shards"):
        raise StepError(f'reference must be "batch" or "shards", found {reference!r}.')
    numbers = sorted(set(replicas) - {1})  # the others are compared with one replica
    if min(numbers, default=0) < 1 or steps < 2:  # the first step shows no optimizer state
        raise StepError(
            "replicas must hold numbers above 1, such as (1, 2, 4), and steps must be at least 2; found "
            f"{replicas!r} and {steps!r}."
        )
    # The largest first: it splits the CPU.
    strategies = {n: virtual_replicas(n, kind=kind) for n in [*reversed(numbers), 1]}
    batches = _global_batches(data, steps, global_batch_size, numbers if uneven else [])
    differences: dict[int, float] = {}
    control, bar = 0.0, floor
    for n in numbers:
        if reference == "shards" or not differences:
            expected, *others = train(
                make_step, batches, strategies[1], seed, ignore, shards=n if reference == "shards" else 1, controls=3
            )
            if all(map(np.array_equal, expected.start, expected.end)):
                raise AssertionError(
                    "The step changed none of its trainable variables, so nothing can be proven. Check its learning "
                    "rate and what it lists as `variables`."
                )
            control = max(control, *(max(other.differences(expected)) for other in others))
            if control > 1e-3:
                raise AssertionError(
                    "Nothing can be proven: on one replica, weights that differ in the last place give results that "
                    f"differ by {control:.1e}. The net amplifies rounding: use tanh instead of ReLU, average instead "
                    "of max pooling, or fewer steps."
                )
            bar = max(floor, 3 * control)
        try:
            (found,) = train(make_step, batches, strategies[n], seed, ignore)
        except NonFiniteLossError as error:
            raise AssertionError(
                f"On {n} replicas, the loss became NaN or infinite at step {error.step}; on one replica it did not. A "
                "replica's share may be empty; sums over an empty share must be zero, not NaN."
            ) from error
        if not all(map(np.array_equal, found.start, expected.start)):
            raise AssertionError(
                "make_step creates a step with different initial values each time. Before each call, the seeds of "
                "Python, NumPy, TensorFlow and Keras are set; draw from these, or load the values."
            )
        measured = found.differences(expected)
        differences[n] = max(measured)
        beyond = [name for name, difference in zip(expected.names, measured, strict=True) if difference > bar]
        if wrong := found.parted or beyond:
            what = "the replicas' copies differ" if found.parted else f"by {differences[n]:.1e}, allowed {bar:.1e}"
            raise AssertionError(
                f"The step does not give the same result on {n} replicas ({kind}) as on one. After {steps} steps these "
                f"differ ({what}): {', '.join(wrong)}. A net with plain BatchNormalization or random layers needs "
                'reference="shards". docs/equivalence.md lists causes.'
            )
    return Equivalence(differences, control, bar, steps)


def _global_batches(data: Any, steps: int, size: int | None, uneven_for: Sequence[int]) -> list[Any]:
    """Read `steps` global batches as NumPy nests, repeating the data as often as needed."""
    if not isinstance(data, (Recipe, tf.data.Dataset)):
        if size is None or not isinstance(data, (tuple, list)):
            raise StepError(
                "Data must be a recipe such as mk.data.batches(...), a tf.data.Dataset of global batches, or a tuple "
                f"of arrays (x, y) with global_batch_size=...; found {type(data).__name__}."
            )
        data = tf.data.Dataset.from_tensor_slices(tuple(data)).batch(size)
    elif size is not None:
        raise StepError("global_batch_size is for arrays; this data is already batched. Leave it out.")
    if isinstance(data, Recipe):
        data = data.epochs(steps)
    batches = list(data.repeat().take(steps).as_numpy_iterator())
    if not batches:
        raise StepError("The data set is empty. Check its path, filters and drop_remainder.")
    for i in range(1, steps, 2):
        if any(len(tf.nest.flatten(batches[i])[0]) % n == 0 for n in uneven_for):
            batches[i] = tf.nest.map_structure(lambda part: part[:-1], batches[i])
    return batches
