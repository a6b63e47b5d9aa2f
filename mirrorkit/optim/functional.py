"""Any Keras optimizer as a pure function.

Keras's `stateless_apply` only raises on the TensorFlow backend, because there `apply` talks to `tf.distribute`: it
all-reduces the gradients once more and updates through `merge_call`. mirrorkit hands the optimizer gradients that
have been reduced, so neither is wanted.
"""

from __future__ import annotations

import contextlib
import functools
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable, Variable
from mirrorkit.errors import MirrorkitError, StepError


@functools.cache
def _between() -> type[KerasOptimizer]:
    """Return a class to stand between the user's and Keras's TFOptimizer, which undoes what that overrides."""
    distributed = private.get("optimizer.TFOptimizer")
    base = private.get("base_optimizer.BaseOptimizer")  # what all backends share: plain assignments

    class WithoutDistribution(distributed):  # type: ignore[misc, valid-type]
        assign = base.assign
        assign_add = base.assign_add
        assign_sub = base.assign_sub
        _backend_update_step = base._backend_update_step
        _apply_weight_decay = base._apply_weight_decay

        def _backend_apply_gradients(self, grads: list[tf.Tensor], trainable_variables: list[KerasVariable]) -> None:
            # Keras overwrites the weights within a branch, where a value that is assigned could not leave it.
            every = self.ema_overwrite_frequency
            self.__dict__["ema_overwrite_frequency"] = None  # by assignment Keras would track it
            super()._backend_apply_gradients(grads, trainable_variables)
            if self.use_ema and every:
                is_due = (self.iterations + 1) % every == 0
                for weight, average in zip(
                    self._trainable_variables, self._model_variables_moving_average, strict=True
                ):
                    if average is not None:
                        weight.assign(tf.where(is_due, tf.convert_to_tensor(average), tf.convert_to_tensor(weight)))

        def _var_key(self, variable: Variable) -> Hashable:
            # In a stateless scope `variable.value` is a tensor without identity: ask for the variable behind it.
            key: Hashable = super()._var_key(getattr(variable, "_value", variable))
            return key

    return WithoutDistribution


@functools.cache
def _without_distribution(cls: type[KerasOptimizer]) -> type[KerasOptimizer]:
    return type(f"Functional{cls.__name__}", (cls, _between()), {})


def trainable_variables(optimizer: KerasOptimizer) -> list[KerasVariable]:
    """Return the variables that `optimizer` was built for, in its order."""
    return list(optimizer._trainable_variables)


def schedule_of(optimizer: KerasOptimizer) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Return the schedule of an optimizer's learning rate, a function of the updates before; None where it has none."""
    given = optimizer._learning_rate
    return given if isinstance(given, keras.optimizers.schedules.LearningRateSchedule) else None


def functional_apply(
    optimizer: KerasOptimizer,
    weights: Sequence[tf.Tensor],
    slots: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    *,
    rate: tf.Tensor | None = None,
    of: Sequence[KerasVariable] | None = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Compute the result of `optimizer.apply(gradients)`, without changing a variable.

    ```python
    weights, slots = ([v.value for v in of] for of in (model.trainable_variables, optimizer.variables))
    new_weights, new_slots = mk.optim.functional_apply(optimizer, weights, slots, gradients)
    ```

    ScheduleFreeAdamW is the exception: on TensorFlow its `apply` reads a momentum that it has just overwritten; here
    it reads the old one, as its paper does (arXiv:2405.15682).

    Args:
        optimizer: a built Keras optimizer; its schedule, weight decay and constraints are applied as always.
        weights: values of the variables that it was built with, in that order.
        slots: values of `optimizer.variables` (iterations and learning rate among them), in that order.
        gradients: one dense tensor for each weight, of its shape, already summed or averaged over the replicas.
        rate: the learning rate of this update by the optimizer's schedule, if known.
        of: the variables whose gradients are given, if not all.

    Returns:
        The new weights and the new slots, in the given order and dtypes.
    """
    # A twin that shares every attribute: the user's object keeps its class, and its variables stay the keys
    # under which the stateless scope holds their values.
    twin: KerasOptimizer = object.__new__(_without_distribution(optimizer.__class__))
    twin.__dict__.update(optimizer.__dict__)
    if rate is not None:
        twin.__dict__["_learning_rate"] = lambda: rate
    variables = [*trainable_variables(optimizer), *optimizer.variables]
    values = [*weights, *slots]
    state = list(zip(variables, values, strict=True))
    with _named_as_tensorflow(twin._trainable_variables), keras.StatelessScope(state_mapping=state) as scope:
        known, before = set(scope.state_mapping), _plain(optimizer)
        try:
            twin.apply(list(gradients), of and list(of))
        except MirrorkitError:
            raise
        except Exception as error:  # whatever an optimizer of the user's may raise
            raise StepError(
                f"{type(optimizer).__name__} could not be computed as a function of weights, slots and gradients, as a "
                f"step needs: {type(error).__name__}{f': {error}' if str(error) else ''}. An optimizer of your own "
                "defines build and update_step, keeps its state in add_variable or add_variable_from_reference, and "
                "writes with self.assign, assign_add and assign_sub."
            ) from error
    # What it sets for the first time may be a constant.
    if changed := [name for name, text in _plain(twin).items() if text != before.get(name, text)]:
        raise StepError(
            f"{type(optimizer).__name__} changes its Python attributes {changed} in an update, and a compiled step "
            "sees them once. Keep what changes in add_variable or add_variable_from_reference."
        )
    if scope.state_mapping.keys() - known:
        raise StepError(
            f"{type(optimizer).__name__} assigns a variable that is not among its own in an update, which would be "
            "lost: a SeedGenerator would draw the same numbers in each. Make it an attribute in __init__; of a "
            "SeedGenerator its state (self.seed = self.generator.state)."
        )
    new = [tf.cast(scope.get_current_value(v), value.dtype) for v, value in zip(variables, values, strict=True)]
    return new[: len(weights)], new[len(weights) :]


def _plain(optimizer: KerasOptimizer) -> dict[str, str]:
    """Return numbers and arrays among the public attributes of an optimizer and of its classes, written out.

    So too lists and dicts of them.
    """
    known = ChainMap(vars(optimizer), *(dict(vars(kind)) for kind in type(optimizer).__mro__))
    return {name: repr(value) for name, value in known.items() if not name.startswith("_") and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (int, float, np.ndarray, np.generic))


@contextlib.contextmanager
def _named_as_tensorflow(variables: Sequence[KerasVariable]) -> Iterator[None]:
    """Name weights as TensorFlow's variables, which Keras hands to an optimizer: "dense/kernel:0", not "kernel".

    `exclude_from_weight_decay(var_names=)` searches in this name, and so may an `update_step`.
    """
    names = [variable._name for variable in variables]
    for variable in variables:
        variable._name = variable._value.name
    try:
        yield
    finally:
        for variable, name in zip(variables, names, strict=True):
            variable._name = name
