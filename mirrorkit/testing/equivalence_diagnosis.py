"""Name the likely cause where a step fails `assert_equivalent`, from its updates and from a probe of its sums.

A symptom is a plain observation, such as "twice the examples give the same gradient sum". What is found this way is
likely, not certain, and the texts say "looks like".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import batching
from mirrorkit._keras import keras
from mirrorkit.testing.equivalence_runs import Comparison, Run, distances
from mirrorkit.train import layers_of
from mirrorkit.variables import unchanged

_REPEATS = 32  # large enough for a clipped gradient to reach its bound


def looks_like(comparison: Comparison, bar: float, batches: Sequence[Any], reference: str) -> str:
    """Return a sentence or two on the most likely cause, and what to do.

    Args:
        comparison: of two runs that differ, or of a run whose replicas differ.
        bar: the difference that rounding explains.
        batches: the global batches of both runs.
        reference: as in `assert_equivalent`.
    """
    expected, found = comparison.expected, comparison.found
    updates = min(len(expected.updates), len(found.updates))
    red = [_beyond(found, expected, i, bar) for i in range(updates)]
    first = next((i for i, names in enumerate(red) if names), None)
    cause = (
        _not_combined(found, red[-1])
        or _no_sums(expected, batches)
        or (_depends_on_the_cut(found.step) if reference == "batch" else None)
        or _wrong_factor(expected, found)
        or _equal_shares_only(found, first)
        or (None if red[-1] else "The training is correct, but the logs are not: compute them from the reduced sums.")
        or _clipping_optimizer(found.step)
    )
    if cause:
        return cause
    where = "" if first is None else f" It differs from update {first} on, first in {red[first][0]!r}."
    return (
        f"It looks like none of the known mistakes.{where} If the difference is small and grows with the steps, the "
        "net may amplify rounding: use tanh instead of ReLU, average instead of max pooling, or fewer steps."
    )


def _beyond(found: Run, expected: Run, update: int, bar: float) -> list[str]:
    by_name = distances(found.updates[update], expected.updates[update])
    return sorted((n for n, d in by_name.items() if d > bar), key=lambda n: (n not in found.trainable, -by_name[n]))


def _not_combined(found: Run, red: Sequence[str]) -> str | None:
    """Look for weights or layer state that are some replica's own; both lists have the weights first."""
    name = next(iter([*found.disagreeing, *red]), None)
    if name in found.trainable and not found.replicas_agree:
        return (
            f"It looks like a missing reduction: each replica trains its copy of {name!r} on its own share. Add up the "
            "sums of all replicas before the update, with mk.train.Update or mk.train.all_reduce."
        )
    if name is None or name in found.trainable:
        return None
    whose = "the replicas' copies differ" if not found.replicas_agree else "it is not that of the whole batch"
    return (
        f"It looks like layer state that is not combined: the weights agree, but {name!r} does not: {whose}. Do not "
        "let the layers assign it: take the new state from model.stateless_call, multiply it by the number of "
        "examples, reduce it with the sums, and write the mean."
    )


def _no_sums(run: Run, batches: Sequence[Any]) -> str | None:
    """Repeat every example on one replica: sums over examples grow by the same factor, means do not change."""
    try:
        once, first, second = _computed(run, [batches[0], _repeat(batches[0]), _repeat(batches[1])])
    except Exception:  # the probe must not hide the difference that was found
        return None
    odd = [name for name, value in once.items() if not _close(first[name], _REPEATS * value)]
    if not odd:
        return None
    names = ", ".join(map(repr, odd[:3])) + (", ..." if len(odd) > 3 else "")
    for measure in (_largest, _norm):
        one, other = (measure([values[name] for name in odd]) for values in (first, second))
        if np.isclose(one, other, rtol=1e-4):
            return (
                f"It looks like clipping (or scaling to a norm) before the reduction: {names} of compute reach "
                f"{one:.3g} and no more, however many examples there are. A replica sees part of the gradient; clip "
                "in the update, after the reduction: tf.clip_by_global_norm there, or Step(clip_norm=...)."
            )
    if all(_close(first[name], once[name]) for name in odd):
        return (
            f"It looks like means over the local batch where sums belong: {names} of compute stay the same when every "
            f"example is repeated {_REPEATS} times, so replicas with fewer examples get too much weight. Return sums "
            "and the number of examples, and divide after the reduction."
        )
    return None


def _largest(values: Sequence[np.ndarray]) -> float:
    return max(float(np.max(np.abs(value), initial=0.0)) for value in values)


def _norm(values: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(value**2) for value in values)))


def _computed(run: Run, batches: Sequence[Any]) -> list[dict[str, np.ndarray]]:
    results = []
    for batch in batches:
        with unchanged(run.step.variables):
            sums = run.strategy.run(run.step.compute, args=(tf.nest.map_structure(tf.constant, batch),))
        leaves = keras.tree.flatten_with_path(sums)
        results.append({"/".join(map(str, path)): np.asarray(value, np.float64) for path, value in leaves})
    return results


def _repeat(batch: Any) -> Any:
    return tf.nest.map_structure(lambda part: np.concatenate([part] * _REPEATS), batch)


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    # a wide tolerance, for float16: the alternatives differ by a factor of 32
    return bool(np.linalg.norm(one - other) <= 0.02 * np.linalg.norm(other) + 1e-12)


def _depends_on_the_cut(step: Any) -> str | None:
    model = getattr(step, "model", None)
    if not isinstance(model, keras.Model):
        return None
    normal = [
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.synchronized
    ]
    random = [variable.path for variable in model.non_trainable_variables if "seed" in variable.path]
    if not normal + random:
        return None
    return (
        f"The net has parts whose result depends on how a batch is cut ({', '.join(normal + random)}), so it may "
        'differ without being wrong. Compare with one device that computes the same shards: reference="shards"; or use '
        "BatchNormalization(synchronized=True) and no random layers."
    )


def _wrong_factor(expected: Run, found: Run) -> str | None:
    """Look for a factor N or 1/N in the first update of the weights or, if the optimizer hides it, of its slots."""

    def moved(run: Run, names: Sequence[str]) -> np.ndarray:
        change = [np.ravel(np.float64(run.updates[0][n]) - np.float64(run.first[n])) for n in names]
        return np.concatenate([*change, np.zeros(1)])

    slots = [n for n, v in found.first.items() if n not in found.trainable and v.dtype.kind == "f" and v.ndim]
    for names in (sorted(found.trainable), *([name] for name in slots)):
        one, many = moved(expected, names), moved(found, names)
        if not np.any(one):
            continue
        for factor, text in ((found.replicas, "too large"), (1 / found.replicas, "too small")):
            if np.linalg.norm(many - factor * one) <= 1e-3 * np.linalg.norm(factor * one):
                return (
                    f"It looks like a wrong divisor: the first update's gradient is {found.replicas} times {text}, and "
                    f"there are {found.replicas} replicas. Add up the replicas' sums and divide once by the number "
                    "of examples in the global batch; inside strategy.run, Keras's mean losses divide by the number of "
                    "replicas, and optimizer.apply adds up once more."
                )
    return None


def _equal_shares_only(found: Run, first: int | None) -> str | None:
    def even(size: int) -> bool:
        return len(set(batching.per_replica_sizes(size, found.replicas))) == 1

    if not first or not all(map(even, found.sizes[:first])) or even(found.sizes[first]):
        return None
    return (
        "It looks like a mean over the local batch: the result is correct while the replicas' shares are equal and "
        f"wrong from update {first} on, whose {found.sizes[first]} examples are split as "
        f"{', '.join(map(str, batching.per_replica_sizes(found.sizes[first], found.replicas)))}. Add up the sums of "
        "the replicas and divide by the number of examples in the global batch."
    )


def _clipping_optimizer(step: Any) -> str | None:
    optimizers = [value for value in vars(step).values() if isinstance(value, keras.optimizers.Optimizer)]
    for optimizer in optimizers:
        for option in ("clipnorm", "global_clipnorm", "clipvalue"):
            if getattr(optimizer, option, None) is not None:
                return (
                    f"It looks like clipping before the reduction: {type(optimizer).__name__} has {option}, and inside "
                    "strategy.run optimizer.apply clips one replica's gradient. Apply it to the reduced gradient, with "
                    "mk.train.Update and mk.optim.functional_apply."
                )
    return None
