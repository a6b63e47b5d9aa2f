"""Prove that a step gives the same results on N replicas as on one: `Step` with any options, or a custom step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.testing.equivalence_data import global_batches, permuted
from mirrorkit.testing.equivalence_diagnosis import looks_like
from mirrorkit.testing.equivalence_runs import Arrangement, Comparison, Run, Trial, train
from mirrorkit.testing.local import virtual_replicas

_CONTROLS = 3
_USELESS_CONTROL = 1e-3  # a step whose own runs differ by this much proves nothing


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
        control: the difference on one replica when the same sums are taken in another order.
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
    measure it, the same training is run with the examples of every batch in another order. With `reference="shards"`
    examples must keep their places, so it is run from weights that differ in the last bit. If a step fails, the error
    names the most likely cause.

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
            Dropout, augmentation, float16).
        uneven: drop the last example of every second batch that replicas would share equally.
        ignore: parts of the paths of variables that are not compared. Use it for parameters whose true gradient is
            zero, such as an attention's key bias: they hold only rounding errors. Keras numbers layers of one class, so
            name yours.
        seed: for `keras.utils.set_random_seed`, before each `make_step()`.
        floor: the smallest tolerance.

    Returns:
        The measured differences.

    Raises:
        AssertionError: the results differ; or the step trains nothing, or depends so much on the order of its examples
            that nothing can be proven.
        StepError: arguments that do not fit each other, a step without `variables`.
        DeviceError: TensorFlow has already started with fewer CPU devices.
    """
    if reference not in ("batch", "shards"):
        raise StepError(f'reference must be "batch" or "shards", found {reference!r}.')
    numbers = sorted(set(replicas) - {1})  # the others are compared with one replica
    if not numbers or numbers[0] < 1:
        raise StepError(f"replicas must hold numbers above 1, such as (1, 2, 4); found {replicas!r}.")
    if steps < 2:
        raise StepError(f"steps must be at least 2, found {steps!r}: the first step shows no optimizer state.")
    strategies = {n: virtual_replicas(n, kind=kind) for n in reversed(numbers)}  # the largest first splits the CPU
    one = virtual_replicas(1, kind=kind)
    batches = global_batches(data, steps=steps, size=global_batch_size, uneven_for=numbers if uneven else [])

    differences: dict[int, float] = {}
    control = 0.0
    expected: Run | None = None
    for n in numbers:
        if expected is None or reference == "shards":
            expected, spread = _reference(
                Arrangement(make_step, seed, n if reference == "shards" else 1), one, batches, ignore
            )
            control = max(control, spread)
        bar = max(floor, 3 * control)
        try:
            (found,) = train(
                Arrangement(make_step, seed), strategies[n], [Trial(batches)], ignore=ignore, like=expected
            )
        except NonFiniteLossError as error:
            raise AssertionError(
                f"On {n} replicas, the loss became NaN or infinite at step {error.step}; on one replica it did not. A "
                "replica's share may be empty; sums over an empty share must be zero, not NaN."
            ) from error
        _require_same_start(expected, found)
        comparison = Comparison(expected, found)
        differences[n] = comparison.difference
        if comparison.difference > bar or not found.replicas_agree:
            raise AssertionError(_failure(comparison, bar, looks_like(comparison, bar, batches, reference)))
    return Equivalence(differences, control, max(floor, 3 * control), steps)


def _reference(
    arrangement: Arrangement, strategy: tf.distribute.Strategy, batches: Sequence[Any], ignore: Sequence[str]
) -> tuple[Run, float]:
    """Train on one replica; return the run and the difference that rounding alone makes."""
    if arrangement.shards > 1:  # whose examples must stay in their places, as random masks do
        others = [Trial(batches, nudge=i) for i in range(_CONTROLS)]
    else:
        others = [Trial(permuted(batches, seed=i)) for i in range(_CONTROLS)]
    run, *controls = train(arrangement, strategy, [Trial(batches), *others], ignore=ignore)
    if all(np.array_equal(run.first[name], run.updates[-1][name]) for name in run.trainable):
        raise AssertionError(
            "The step changed none of its trainable variables, so nothing can be proven. Check its learning rate and "
            "what it lists as `variables`."
        )
    spread = max(Comparison(run, control).difference for control in controls)
    if spread > _USELESS_CONTROL:
        raise AssertionError(
            "Nothing can be proven: one replica that gets the examples of each batch in another order, or weights that "
            f"differ in the last place, gives results that differ by {spread:.1e}. Either the step depends on the "
            "order of the examples or draws random numbers, or the net amplifies rounding. Use tanh instead of ReLU, "
            'average instead of max pooling, or fewer steps; use reference="shards" for a net with random layers.'
        )
    return run, spread


def _require_same_start(expected: Run, found: Run) -> None:
    other = [name for name, value in found.first.items() if not np.array_equal(value, expected.first[name])]
    if other:
        raise AssertionError(
            f"make_step creates a step with different initial values each time: {', '.join(other[:3])}. Before each "
            "call, the seeds of Python, NumPy, TensorFlow and Keras are set; draw from these, or load the values."
        )


def _failure(comparison: Comparison, bar: float, cause: str) -> str:
    found = comparison.found
    if found.replicas_agree:
        what = f"{comparison.worst!r} differs by {comparison.difference:.1e}, but rounding explains only {bar:.1e}"
    else:
        what = f"the replicas' copies of {found.disagreeing[0]!r} differ"
    return (
        f"The step does not give the same result on {found.replicas} replicas as on one: after {len(found.sizes)} "
        f"steps {what}.\n{cause}"
    )
