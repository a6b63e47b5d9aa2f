"""TensorFlow's random numbers in a model's own code: of its seed, replica, step and use, so a resumed run repeats them.

`tf.random.normal` and its like, and `keras.random.normal` without a seed, draw from a state of the process that no
checkpoint holds. Within a model's own step they are stateless draws; those of a `SeedGenerator`, whose state is saved,
are told apart by replica alone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.train.keras_model.seeds import fold
from mirrorkit.train.reduce.tracing import draws, foreign_state
from mirrorkit.train.replica_code.scope import ShareScope


# Keras's draws without a seed take one from there: from a variable that each thread makes for itself.
@replaces("seed_generator.global_seed_generator", within="scope")
def _global_seed_generator(original: Callable[..., Any]) -> Any:
    return SimpleNamespace(next=lambda ordered=True: _seed(None))


def _seed(given: Any) -> tf.Tensor:
    """Return another seed of the scope, int64 [2]."""
    scope: ShareScope = ambient.scope
    if scope.is_pure and not scope.by_user:  # whose step counts for the seeds that it knows alone
        raise scope.refusal("it draws without a seed", "") from foreign_state(["the seed of a draw that names none"])
    scope.require_no_loop()
    scope.draws += 1
    # TensorFlow's global seed (`tf.random.set_seed`), or one number where there is none, and that of the operation.
    of_process, of_draw = tf.compat.v1.get_seed(0 if given is None else hash(given) % 2**31)
    own = fold(tf.constant([of_draw, scope.draws], tf.int64), of_process, *tf.unstack(scope.share.draw_numbers()))
    if ambient.draws is not None:
        ambient.draws.seeds.append(own)
    return own


@replaces("random.normal", "random.uniform", "random.truncated_normal", within="scope")
def _stateless(original: Callable[..., Any], shape: Any, *args: Any, seed: Any = None, **options: Any) -> tf.Tensor:
    draw = getattr(tf.random, f"stateless_{original.__name__.removeprefix('random_')}")
    return draw(shape, _seed(seed), *args, **options)


@replaces("nn.dropout", within="scope")
def _dropped(original: Callable[..., Any], x: Any, rate: Any, noise_shape: Any = None, **given: Any) -> tf.Tensor:
    seed = _seed(given.get("seed"))
    return tf.nn.experimental.stateless_dropout(x, rate, seed=seed, noise_shape=noise_shape)


@replaces("random.shuffle", within="scope")
def _shuffled(original: Callable[..., Any], value: Any, seed: Any = None, name: Any = None) -> tf.Tensor:
    return tf.random.experimental.stateless_shuffle(value, _seed(seed))


def require_repeatable(traced: tf.Graph) -> None:
    """Refuse a step, as it was traced, that draws from a state which no checkpoint holds."""
    if drawn := sorted(draws(traced)):
        raise StepError(
            f"The model's train_step draws random numbers with TensorFlow's {', '.join(drawn)}, whose state no "
            "checkpoint holds and replicas may share. Call tf.random.normal, uniform or truncated_normal by these "
            "names, or keras.random with a keras.random.SeedGenerator of the model."
        )
