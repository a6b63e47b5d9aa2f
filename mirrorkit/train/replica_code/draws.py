"""TensorFlow's random numbers in a model's own code: of this replica, step and use, so that a resumed run repeats them.

`tf.random.normal` and its like, and `keras.random.normal` without a seed, draw from a state of the process that no
checkpoint holds. Within a `ReplicaScope` they are stateless draws; those of a `SeedGenerator`, whose state is saved,
are told apart by replica alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.row_draws import drawing_rows
from mirrorkit.train.keras_model.seeds import draws_at, fold
from mirrorkit.train.reduce.tracing import kinds_in
from mirrorkit.train.replica_code.pure_scope import PureScope
from mirrorkit.train.replica_code.scope import ReplicaScope, this_scope

_STATELESS = ("normal", "uniform", "truncated_normal")
# Kinds of operations that draw from a state.
_STATEFUL = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "Rng", "Stateful")
_NO_DRAWS = {"StatefulPartitionedCall"}


@functools.cache
def wrap_draws() -> None:
    """Let `tf.random` ask for the `ReplicaScope` around it; without one it does what it always did."""
    for name in _STATELESS:
        _wrap(f"random.{name}", functools.partial(_stateless, f"stateless_{name}"))
    _wrap("random.shuffle", _shuffled)
    _wrap("nn.dropout", _dropped_by_state)
    # Keras's draws without a seed take one from there: from a variable that each thread makes for itself.
    _wrap("seed_generator.global_seed_generator", lambda scope, original: _Seeds(scope))


class _Seeds:
    """In place of Keras's global generator: the seeds of draws that are given none."""

    def __init__(self, scope: ReplicaScope | PureScope) -> None:
        self._scope = scope

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Return another seed, int64 [2]."""
        return _seed(self._scope, None)


def _wrap(name: str, within: Callable[..., tf.Tensor]) -> None:
    def chosen(original: Callable[..., tf.Tensor], *args: Any, **options: Any) -> tf.Tensor:
        scope = this_scope()
        return original(*args, **options) if scope is None else within(scope, original, *args, **options)

    private.replace(name, chosen)


def _seed(scope: ReplicaScope | PureScope, given: Any) -> tf.Tensor:
    scope.require_no_loop()
    scope.draws += 1
    seed = tf.constant([0 if given is None else hash(given) % 2**31, scope.draws], tf.int64)
    own = fold(seed, *tf.unstack(scope.share.draw_numbers()))
    if scope.share.checked is not None:
        scope.share.checked.seeds.append(own)
    return own


def _stateless(
    stateless: str,
    scope: ReplicaScope | PureScope,
    original: Callable[..., tf.Tensor],
    shape: Any,
    *args: Any,
    seed: Any = None,
    **options: Any,
) -> tf.Tensor:
    return getattr(tf.random, stateless)(shape, _seed(scope, seed), *args, **options)


def _dropped_by_state(
    scope: ReplicaScope | PureScope,
    original: Callable[..., tf.Tensor],
    x: Any,
    rate: Any,
    noise_shape: Any = None,
    **given: Any,
) -> tf.Tensor:
    seed = _seed(scope, given.get("seed"))
    return tf.nn.experimental.stateless_dropout(x, rate, seed=seed, noise_shape=noise_shape)


def _shuffled(
    scope: ReplicaScope | PureScope, original: Callable[..., tf.Tensor], value: Any, seed: Any = None, name: Any = None
) -> tf.Tensor:
    return tf.random.experimental.stateless_shuffle(value, _seed(scope, seed))


@contextmanager
def drawing(scope: ReplicaScope) -> Iterator[None]:
    """Let Keras's random layers and seed generators draw other numbers on each replica; on one, those of Keras."""
    wrap_draws()
    if scope.share.checked is not None:
        with drawing_rows(scope.share.checked):
            yield
        return
    if scope.share.replicas == 1:
        yield
        return
    with draws_at(lambda: [scope.share.draw_numbers()[-1]]):
        yield


def require_repeatable(traced: tf.Graph) -> None:
    """Refuse a step, as it was traced, that draws from a state which no checkpoint holds."""
    drawn = sorted({kind for kind in kinds_in(traced) if kind.startswith(_STATEFUL)} - _NO_DRAWS)
    if drawn:
        raise StepError(
            f"The model's train_step draws random numbers with TensorFlow's {', '.join(drawn)}, whose state no "
            "checkpoint holds and replicas may share. Call tf.random.normal, uniform or truncated_normal by these "
            "names, or keras.random with a keras.random.SeedGenerator of the model."
        )
