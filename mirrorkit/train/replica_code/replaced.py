"""What functions of Keras and TensorFlow do within a model's own step on a replica.

Those of Keras talk to other replicas, update or take means. A replica's mean counts by its rows. So a mean over what a
mask or weights leave is divided by what counts on all replicas, times the replica's part of the rows, in place of what
counts in its own: one number for each such loss travels before the backward pass. It is exact whatever the shares are.

For TensorFlow such code is one replica's, and its tf.functions are part of the trace. What it computes for a share of
the batch is combined by the step, and by nobody else. TensorFlow's guide divides a loss by the number of replicas,
since there the gradients are added up afterwards. A step averages them over the rows, so its replicas would divide
twice.

`tf.random.normal` and its like, and `keras.random.normal` without a seed, draw from a state of the process that no
checkpoint holds. Within a model's own step they are stateless draws of its seed, replica, step and use, so a resumed
run repeats them; those of a `SeedGenerator`, whose state is saved, are told apart by replica alone.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable
from mirrorkit.errors import StepError
from mirrorkit.optim import trainable_variables
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.train.keras_model.seeds import fold
from mirrorkit.train.reduce.tracing import draws, foreign_state
from mirrorkit.train.replica_code.pure_step import Divisor, ShareScope
from mirrorkit.train.replica_code.scope import adds_up

_MEANS = ("mean", "sum_over_batch_size")
_log = logging.getLogger("mirrorkit")


@replaces("loss.scale_loss_for_distribution", "loss.unscale_loss_for_distribution", within="scope")
def _scale_for_distribution(original: Any, value: Any) -> Any:
    return value


@replaces("nn.compute_average_loss", within="scope")
def _average_loss(
    original: Any, per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """A sum over a share by the rows of the whole batch, which the caller names, is a part of a mean."""
    value = original(per_example_loss, sample_weight, global_batch_size)
    return value if global_batch_size is None else value / tf.cast(ambient.scope.share.fraction, value.dtype)


@replaces("Mean.update_state", within="scope")
def _update_state(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """A single number is the mean over the rows of a share: it counts as they do.

    That of one output's loss Keras weighs by a number of rows that it knows from a shape. In its `fit` batches may have
    any size, so that it knows none, and all count alike.
    """
    scope = ambient.scope
    of_output = not scope.by_user and metric.name.endswith("_loss")
    if sample_weight is None or (of_output and isinstance(sample_weight, int)):
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            sample_weight = tf.cast(scope.share.fraction, metric.dtype)
    return original(metric, values, sample_weight=sample_weight)


@replaces("Variable.assign_add", within="scope")
def _assign_add(original: Any, variable: KerasVariable, value: Any) -> Any:
    """Add to this replica's part of a metric's sum, which need not be that of all rows: also within a loop."""
    scope = ambient.scope
    if scope.is_pure or not adds_up(variable) or private.get("stateless_scope.get_stateless_scope")() is not scope:
        return original(variable, value)
    value = tf.cast(value, variable.dtype)
    with scope.outside():
        new = scope.own(variable) + value
    scope.add_update((variable, new))
    return new


@replaces("Optimizer.apply", "LossScaleOptimizer.apply", within="scope optimizers")
def _apply(original: Any, optimizer: KerasOptimizer, grads: Sequence[Any], *args: Any, **options: Any) -> None:
    scope, found = ambient.scope, ambient.optimizers
    given = [*args, *options.values()]  # at most the variables
    variables = list(given[0]) if given and given[0] is not None else None
    if found is None:
        scope.apply(optimizer, list(grads), variables)
        return
    if scope is not None:
        scope.require_outermost(f"{type(optimizer).__name__}.apply is called")
    used = trainable_variables(optimizer) if variables is None else variables
    found.setdefault(id(optimizer), (optimizer, used))


def note_own_apply(optimizer: KerasOptimizer) -> None:
    """Let an `apply` of a user's class be noted as Keras's is: the update calls it, with the reduced gradients."""
    kinds: Sequence[Any] = type(optimizer).__mro__
    for kind in kinds:
        original = vars(kind).get("apply")
        if original is None or kind.__module__.startswith("keras.") or hasattr(original, "_mirrorkit_original"):
            continue

        @functools.wraps(original)
        def apply(*args: Any, original: Any = original, **options: Any) -> Any:
            is_in_step = ambient.scope is not None or ambient.optimizers is not None
            call = functools.partial(_apply, original) if is_in_step else original
            return call(*args, **options)

        apply._mirrorkit_original = original  # type: ignore[attr-defined]
        kind.apply = apply


@replaces("Optimizer.scale_loss", "LossScaleOptimizer.scale_loss", within="scope")
def _scale_loss(original: Any, optimizer: KerasOptimizer, loss: Any) -> Any:
    scope = ambient.scope
    return scope.scaled(loss) if scope.is_pure else original(optimizer, loss)


@replaces("GradientTape.__enter__", within="scope")
def _enter(original: Any, tape: tf.GradientTape) -> tf.GradientTape:
    """Weights that are values are watched as variables are."""
    entered: tf.GradientTape = original(tape)
    if ambient.scope.is_pure and tape._watch_accessed_variables:
        entered.watch(ambient.scope.watched)
    return entered


def _value(one: Any) -> Any:
    """Return the value of Keras's variable, of which a gradient is asked."""
    return ambient.scope.get_current_value(one) if isinstance(one, keras.Variable) else one


@replaces("GradientTape.gradient", within="scope")
def _gradient(original: Any, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
    scope = ambient.scope
    if scope.is_pure:
        scope.minimized, sources = target, tf.nest.map_structure(_value, sources)
        if not scope.differentiates:
            return tf.nest.map_structure(tf.zeros_like, sources)
        if scope.means:
            scope.separate(target, sources)
    return original(tape, target, sources, *args, **options)


@replaces("loss.apply_mask", within="scope")
def _apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """Keras gives what counts the weight total / valid, and divides the sum by the total."""
    weight = original(sample_weight, mask, dtype=dtype, reduction=reduction)
    if mask is None or reduction not in _MEANS or not _is_of_more_rows():
        return weight
    return tf.cast(weight, dtype) * tf.cast(_fraction(mask), dtype)


@replaces("loss.reduce_values", within="scope")
def _reduce_values(
    original: Any, values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    mean, scope = original(values, sample_weight, reduction), ambient.scope
    if reduction == "sum" and scope.is_pure and not scope.by_user:  # as a mean over the share's rows
        return mean / tf.cast(scope.share.fraction, mean.dtype)
    if not _is_of_more_rows():
        return mean
    if reduction == "mean_with_sample_weight" and sample_weight is not None and values.shape.rank:
        mean *= tf.cast(_fraction(sample_weight), mean.dtype)
    return scope.divided(mean) if scope.is_pure else mean


def _is_of_more_rows() -> bool:
    """Return whether the means of a step are over more rows than its own."""
    scope = ambient.scope
    is_part = scope.is_pure and (scope.separates or ambient.draws is not None)
    return is_part or scope.share.replicas > 1


def _fraction(counts: tf.Tensor) -> tf.Tensor:
    """Return what counts here by what is to divide it."""
    scope, own = ambient.scope, tf.reduce_sum(tf.cast(counts, tf.float32))
    portion = scope.portion(own)
    if scope.is_pure:
        scope.divisor = Divisor(own, portion)
    return tf.math.divide_no_nan(own, portion)


def call_inlined(function: Any, *args: Any, **options: Any) -> Any:
    """Call what a tf.function was made of, converted by AutoGraph as in a trace of its own."""
    return _converted_call()(function.python_function, args, options)


def _call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return function(*args, **options)


@functools.cache
def _converted_call() -> Any:
    return tf.autograph.to_graph(_call)  # and whatever it calls


@replaces("Function.__call__", within="inlines")
def _function(original: Callable[..., Any], function: Any, *args: Any, **options: Any) -> Any:
    is_of_tensorflow = function.python_function.__module__.startswith("tensorflow.")  # vectorized loops
    return (original if is_of_tensorflow else call_inlined)(function, *args, **options)


@replaces("StrategyBase.num_replicas_in_sync", within="alone")
def _num_replicas_in_sync(original: Callable[..., int], strategy: tf.distribute.Strategy) -> int:
    return 1


@replaces("ReplicaContext.all_reduce", "ReplicaContext.all_gather", within="alone")
def _refuse(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    # Synchronized layers, where they are left as Keras's own: its call, and the gradient that TensorFlow takes of it.
    caller = inspect.stack(0)[2]  # 1 is what `private` made
    if str(caller.frame.f_globals["__name__"]).startswith(("keras.", "tensorflow.")):
        return original(*args, **options)
    raise StepError(
        f"tf.distribute.get_replica_context().{original.__name__} was called in a layer, a loss or a train_step, whose "
        "results the step combines over the replicas itself. Leave it out; for a loss over the whole batch use "
        "mk.train.all_gather with Step.from_loss(..., whole_batch=True), for statistics "
        "BatchNormalization(synchronized=True)."
    )


@replaces("summary.write", within="alone")
def _write(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if not tf.distribute.has_strategy():  # in a thread of its own, which has no writer
        (ambient.summaries or warn_of_summaries)()
    return original(*args, **options)


@functools.cache
def warn_of_summaries() -> None:
    """Say once that a step writes none."""
    _log.warning(
        "A layer, a loss or a metric calls tf.summary, which writes nothing in a step. Return what it writes: as "
        "another output of the model with a metric, or by its name from the loss_fn of Step.from_loss."
    )


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
