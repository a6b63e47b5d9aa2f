"""Check that all replicas hold the same values: compare checksums made on the devices, then the values that differ."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import ConcreteFunction
from mirrorkit.checks.bits import checksums
from mirrorkit.errors import StepError
from mirrorkit.strategy import bytes_of_all_workers, first_replica, has_copies, of_chief
from mirrorkit.train import TraceOnce, check_variables
from mirrorkit.variables import assign, copies, is_sharded, native, path


@dataclass(frozen=True)
class Difference:
    """How one replica's copy of a variable differs from replica 0's.

    ```python
    copies = strategy.experimental_local_results(model.layers[-1].bias.value)
    copies[1].assign_add(tf.ones(10))   # of replica 1
    found = mk.checks.in_sync(strategy, model).first
    print(found)  # 'logits/bias' on replica 1: 10 of 10 elements differ from replica 0, by at most 1
    ```

    Attributes:
        variable: its path.
        replica: the first replica that differs.
        elements: how many of its elements differ.
        size: how many elements there are.
        largest: the largest absolute difference; inf if one of the two is NaN; 0 if only the bits differ (-0 and 0).
    """

    variable: str
    replica: int
    elements: int
    size: int
    largest: float

    def __str__(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.variable!r} on replica {self.replica}: {self.elements} of {self.size} elements differ from "
            f"replica 0, by at most {self.largest:.3g}"
        )


@dataclass(frozen=True)
class SyncReport:
    """The result of a check; true if all replicas hold the same bits.

    ```python
    report = mk.checks.in_sync(strategy, model)
    print(bool(report), report.differing)  # True ()
    print(report)  # 2 replicas hold the same bits in 4 variables
    ```

    Attributes:
        replicas: how many replicas were compared.
        variables: how many variables were compared.
        differing: the paths of the variables that differ, in order.
        first: how the first of them differs.
    """

    replicas: int
    variables: int
    differing: tuple[str, ...] = ()
    first: Difference | None = None

    def __bool__(self) -> bool:
        """Whether all replicas hold the same bits."""
        return not self.differing

    def __str__(self) -> str:
        """Say it in one sentence."""
        if self.replicas == 1:
            return f"There is one copy of the {self.variables} variables: nothing to compare"
        if self:
            return f"{self.replicas} replicas hold the same bits in {self.variables} variables"
        return (
            f"{len(self.differing)} of {self.variables} variables differ between {self.replicas} replicas: {self.first}"
        )


def in_sync(strategy: tf.distribute.Strategy, of: Any) -> SyncReport:
    """Check that every replica holds the same bits.

    ```python
    report = mk.checks.in_sync(strategy, step)
    assert report, report  # names the first variable that differs, on which replica, and by how much
    ```

    Each replica computes a 64-bit checksum of each variable on its own device, and only the checksums are sent. On
    several workers, all of them must call it, and all get the same report. If there is only one copy of the variables
    (one device, central_storage, parameter servers), there is nothing to compare.

    Args:
        strategy: the strategy that created the variables.
        of: a step, a model, an optimizer, any object with `variables`, or a list of variables. Leave out variables that
            are meant to differ (`tf.VariableSynchronization.ON_READ`); the slots of `Step(shard_optimizer=True)`, which
            differ by design, are left out automatically.

    Raises:
        StepError: there are no variables, or another strategy created them.
    """
    return replicas_of(strategy, of).check()


def repair(strategy: tf.distribute.Strategy, of: Any) -> SyncReport:
    """Copy the values of replica 0 to every replica that differs; return the report of `in_sync` before the copy.

    ```python
    copies = strategy.experimental_local_results(model.layers[-1].bias.value)
    copies[1].assign_add(tf.ones(10))   # of replica 1
    report = mk.checks.repair(strategy, model)
    print(report.differing, bool(mk.checks.in_sync(strategy, model)))  # ('logits/bias',) True
    ```

    Takes the arguments of `in_sync` and raises the same errors.
    """
    return replicas_of(strategy, of).check(repair=True)


class Replicas:
    """The copies of a list of variables on all replicas; compares them with a function that is compiled once.

    Args:
        strategy: the strategy that created the variables.
        variables: Keras or TensorFlow variables.
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
        self.strategy = strategy
        self.variables = list(variables)
        check_variables(strategy, self.variables)
        self._copies = strategy.num_replicas_in_sync if has_copies(strategy) else 1

    @functools.cached_property
    def _checksums(self) -> ConcreteFunction:
        """A function of nothing that returns the checksums of all replicas, int64 [replicas, variables]."""
        pure = TraceOnce(lambda *values: checksums(values))  # once for all replicas

        def of_all() -> tf.Tensor:
            own = pure(*map(tf.convert_to_tensor, map(native, self.variables)))
            context = tf.distribute.get_replica_context()
            shape = [context.num_replicas_in_sync, *own.shape]
            row = tf.scatter_nd([[context.replica_id_in_sync_group]], own[None], shape)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, row)

        run = tf.function(lambda: first_replica(self.strategy, self.strategy.run(of_all)), autograph=False)
        return run.get_concrete_function()

    def check(self, *, repair: bool = False) -> SyncReport:
        """Compare the checksums; see `in_sync`. To `repair`, copy replica 0 to all replicas after that."""
        differing = [] if self._copies == 1 else self._differing()
        first = self._difference(differing[0]) if differing else None
        for variable in differing if repair else ():
            own = copies(variable)[0].numpy()
            value = np.frombuffer(of_chief(self.strategy, own.tobytes()), own.dtype)
            assign(variable, value.reshape(own.shape))
        return SyncReport(self._copies, len(self.variables), tuple(map(path, differing)), first)

    def _differing(self) -> list[Any]:
        sums = self._checksums().numpy()
        return list(itertools.compress(self.variables, (sums != sums[0]).any(axis=0)))

    def _difference(self, variable: Any) -> Difference:
        own = np.stack([copy.numpy().ravel() for copy in copies(variable)])
        data = b"".join(bytes_of_all_workers(self.strategy, own.tobytes(), own.nbytes))
        every = np.frombuffer(data, own.dtype).reshape(-1, own.shape[1])  # [replicas, elements]
        bits = every.view(np.uint8).reshape(*every.shape, own.itemsize)
        apart = (bits != bits[0]).any(axis=2)
        replica = int(apart.any(axis=1).argmax())  # the first
        wide = np.result_type(own.dtype, np.float64)  # complex numbers stay so
        one, other = every[[0, replica]][:, apart[replica]].astype(wide)
        with np.errstate(invalid="ignore"):  # two infinities
            distance = np.nan_to_num(np.abs(one - other), nan=np.inf, posinf=np.inf)
        largest = float(distance[one != other].max(initial=0))
        return Difference(path(variable), replica, one.size, own.shape[1], largest)


# What was compiled for a model or a step, kept for the lifetime of that object, so that repeated checks compile once.
_compiled_for: weakref.WeakKeyDictionary[Any, Replicas] = weakref.WeakKeyDictionary()


def replicas_of(strategy: tf.distribute.Strategy, of: Any) -> Replicas:
    """Return the replicas of an argument of `in_sync`; the same object as long as nothing has changed."""
    variables = list(of if isinstance(of, (list, tuple)) else getattr(of, "variables", ()))
    if not variables:
        raise StepError(f"There are no variables to compare in {type(of).__name__}. Build it first, or pass a list.")
    variables = [variable for variable in variables if not is_sharded(variable)]  # which are meant to differ
    try:
        known = _compiled_for.get(of)
    except TypeError:  # a list
        return Replicas(strategy, variables)
    if known is None or known.strategy is not strategy or [*map(id, known.variables)] != [*map(id, variables)]:
        known = _compiled_for[of] = Replicas(strategy, variables)
    return known
