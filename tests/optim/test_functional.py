"""`functional_apply` against every Keras optimizer's own `apply`, and the private Keras names that it stands on."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS
from optim_helpers import gradients_of, made, named, tensors, variables_of

from mirrorkit import optim, private
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.optim import functional

_WRAPPERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}  # no arithmetic of their own
_ELSEWHERE = {"ScheduleFreeAdamW"}  # see test_schedule_free_adamw_follows_its_formula
_CLASSES = sorted(
    name
    for name, cls in vars(keras.optimizers).items()
    if inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer) and name not in _WRAPPERS | _ELSEWHERE
)
_SHAPES = [(3, 4), (4,), (2, 3, 2)]  # a matrix (Adafactor factors it, Muon orthogonalises it), a bias, a kernel


_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"learning_rate": "schedule", "clipnorm": 0.3}),
    ("SGD", {"clipvalue": 0.1}),
    ("SGD", {"global_clipnorm": 0.2, "momentum": 0.9}),
    ("SGD", {"use_ema": True, "ema_momentum": 0.7}),
    ("SGD", {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"learning_rate": "schedule", "use_ema": True, "global_clipnorm": 0.5, "weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.5, "excluded": [1]}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Ftrl", {"l1_regularization_strength": 0.01, "beta": 0.1}),
    ("Nadam", {"weight_decay": 0.1}),
]


def _variables() -> list[Any]:
    return variables_of(_SHAPES)


def _values(variables: list[Any]) -> list[np.ndarray]:
    return [variable.value.numpy() for variable in variables]


def _run_both(name: str, options: dict[str, Any], *, missing: int | None = None) -> tuple[Any, Any]:
    """Weights and slots after two steps, by `apply` on variables and by `functional_apply` on values."""
    by_apply, untouched = _variables(), _variables()
    reference, optimizer = (made(name, options, variables) for variables in (by_apply, untouched))
    weights, slots = tensors(untouched), tensors(optimizer.variables)
    before = _values([*untouched, *optimizer.variables])
    for step in range(2):
        gradients: list[Any] = gradients_of(untouched, step)
        if missing is not None:
            gradients[missing] = None
        reference.apply(gradients)
        weights, slots = optim.functional_apply(optimizer, weights, slots, gradients)
    after = _values([*untouched, *optimizer.variables])
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new, err_msg="functional_apply touched a variable")
    expected = _values([*by_apply, *reference.variables])
    return expected, [np.asarray(value) for value in (*weights, *slots)]


def _assert_equal(expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    assert len(expected) == len(found)
    for want, got in zip(expected, found, strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)  # measured difference: 0, for every class and option below


_CASES = [*((name, {}) for name in _CLASSES), *_OPTIONS]


@pytest.mark.parametrize(("name", "options"), _CASES, ids=named(_CASES))
def test_equals_apply_for_every_keras_optimizer(name: str, options: dict[str, Any]) -> None:
    if name == "Muon" and KERAS < (3, 13):
        pytest.skip("in this Keras, Muon asks TensorFlow's variables for a path that they do not have")
    expected, found = _run_both(name, options)
    _assert_equal(expected, found)
    assert not np.array_equal(expected[0], _values(_variables())[0]), "the optimizer moved nothing: the test is empty"


@pytest.mark.skipif(not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="this Keras has no ScheduleFreeAdamW")
def test_schedule_free_adamw_follows_its_formula() -> None:
    """Keras's `apply` does not: on TensorFlow its `momentum_old` is the variable, so it reads the new value."""
    variables = _variables()
    optimizer = made("ScheduleFreeAdamW", {}, variables)
    weights, slots = tensors(variables), tensors(optimizer.variables)
    y = _values(variables)[0].astype("float64")
    x, z, velocity = y, y, np.zeros_like(y)
    for step in range(4):  # Defazio et al. 2024, arXiv:2405.15682, with Keras's 1 / step as the weight of the average
        weights, slots = optim.functional_apply(optimizer, weights, slots, gradients_of(variables, step))
        g = gradients_of(variables, step)[0].numpy()
        velocity = 0.999 * velocity + 0.001 * g**2
        z = z - 0.05 * g / (np.sqrt(velocity / (1 - 0.999 ** (step + 1))) + 1e-8)
        x = x + (z - x) / (step + 1)
        y = 0.1 * z + 0.9 * x
    np.testing.assert_allclose(weights[0], y, atol=2e-6)


def test_constraints_are_applied() -> None:
    def constrained() -> list[Any]:
        variables = _variables()
        variables[0].constraint = keras.constraints.MaxNorm(0.5)
        variables[1].constraint = keras.constraints.NonNeg()
        return variables

    by_apply, untouched = constrained(), constrained()
    reference, optimizer = made("Adam", {}, by_apply), made("Adam", {}, untouched)
    gradients = gradients_of(untouched, 0)
    reference.apply(gradients)
    weights, _ = optim.functional_apply(optimizer, tensors(untouched), tensors(optimizer.variables), gradients)
    _assert_equal(_values(by_apply), [np.asarray(weight) for weight in weights])
    assert np.linalg.norm(weights[0], axis=0).max() <= 0.5 + 1e-6
    assert np.min(weights[1]) >= 0


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_without_gradient_is_left_alone() -> None:
    expected, found = _run_both("AdamW", {"weight_decay": 0.2}, missing=1)
    _assert_equal(expected, found)
    np.testing.assert_array_equal(found[1], _values(_variables())[1])


def test_leaves_the_optimizer_itself_alone() -> None:
    variables = _variables()
    optimizer = made("Adam", {"use_ema": True}, variables)
    cls, attributes = optimizer.__class__, dict(vars(optimizer))
    optim.functional_apply(optimizer, tensors(variables), tensors(optimizer.variables), gradients_of(variables, 0))
    assert optimizer.__class__ is cls is keras.optimizers.Adam
    assert vars(optimizer).keys() == attributes.keys()
    assert all(vars(optimizer)[name] is value for name, value in attributes.items())
    optimizer.apply(gradients_of(variables, 0))  # and it still works the usual way
    assert int(optimizer.iterations) == 1


class _Noisy(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Adds noise to the gradients; `keeps` the state of its generator among its variables."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__(0.1)
        self.generator = keras.random.SeedGenerator(1)
        if keeps:
            self.seed = self.generator.state

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = keras.random.normal(variable.shape, seed=self.generator)
        super().update_step(gradient + noise, variable, learning_rate)


def test_an_optimizer_that_draws_keeps_the_state_among_its_variables() -> None:
    variables, kept = _variables(), _variables()
    optimizer, reference = _Noisy(keeps=True), _Noisy(keeps=True)
    optimizer.build(variables)
    reference.build(kept)
    weights, slots = tensors(variables), tensors(optimizer.variables)
    for step in range(2):
        weights, slots = optim.functional_apply(optimizer, weights, slots, gradients_of(variables, step))
        reference.apply(gradients_of(variables, step))
    _assert_equal(_values([*kept, *reference.variables]), [np.asarray(value) for value in (*weights, *slots)])
    lost = _Noisy(keeps=False)
    lost.build(variables)
    with pytest.raises(StepError, match="_Noisy assigns a variable that is not among its own"):
        optim.functional_apply(lost, tensors(variables), tensors(lost.variables), gradients_of(variables, 0))


class _Halving(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    share = 2.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.share /= 2
        super().update_step(gradient * self.share, variable, learning_rate)


class _LeavesOutThirds(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.calls += 1
        return super().apply([(self.calls % 3 > 0) * gradient for gradient in grads], trainable_variables)


class _InAList(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls = [0.0]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.calls[0] += 1
        super().update_step(gradient / self.calls[0], variable, learning_rate)


class _KeepsAConstant(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.count, self.last = len(grads), float("nan")
        return super().apply(grads, trainable_variables)


def test_one_that_keeps_a_constant_is_taken() -> None:
    variables = _variables()
    optimizer = _KeepsAConstant(0.1)
    optimizer.build(variables)
    for _ in range(2):
        optim.functional_apply(optimizer, tensors(variables), tensors(optimizer.variables), gradients_of(variables, 0))


@pytest.mark.parametrize(("kind", "name"), [(_Halving, "share"), (_LeavesOutThirds, "calls"), (_InAList, "calls")])
def test_one_that_keeps_a_number_in_an_attribute_is_refused(kind: Any, name: str) -> None:
    variables = _variables()
    optimizer = kind(0.1)
    optimizer.build(variables)
    values = tensors(variables), tensors(optimizer.variables), gradients_of(variables, 0)
    with pytest.raises(StepError, match=rf"{kind.__name__} changes its Python attributes \['{name}'\]"):
        optim.functional_apply(optimizer, *values)


def test_is_pure_inside_a_traced_function() -> None:
    variables = _variables()
    optimizer = made("Adam", {}, variables)
    values = tensors([*variables, *optimizer.variables])
    count = len(variables)

    @tf.function(autograph=False)
    def apply(values: list[tf.Tensor], gradients: list[tf.Tensor]) -> Any:
        return optim.functional_apply(optimizer, values[:count], values[count:], gradients)

    trace = apply.get_concrete_function(values, gradients_of(variables, 0))
    assert not trace.variables, "the traced function reads variables beside its arguments"
    eager, _ = optim.functional_apply(optimizer, values[:count], values[count:], gradients_of(variables, 0))
    traced, _ = apply(values, gradients_of(variables, 0))
    for want, got in zip(eager, traced, strict=True):
        np.testing.assert_allclose(want, got, rtol=1e-6, atol=1e-7)


def test_keeps_bfloat16_weights_in_their_dtype() -> None:
    variables = [keras.Variable(np.ones((2, 3)), dtype="bfloat16")]
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build(variables)
    gradient = tf.ones((2, 3), tf.bfloat16)
    slots = tensors(optimizer.variables)
    weights, new_slots = optim.functional_apply(optimizer, tensors(variables), slots, [gradient])
    assert weights[0].dtype == tf.bfloat16
    assert [slot.dtype for slot in new_slots] == [slot.dtype for slot in slots]
    optimizer.apply([gradient])
    np.testing.assert_array_equal(np.asarray(weights[0]), np.asarray(variables[0].value))


def test_the_private_names_of_keras_are_where_they_were() -> None:
    """A new override in Keras's TFOptimizer would reach `tf.distribute` again: `functional.py` must then undo it."""
    between = functional._between()
    tensorflow_part, base = private.get("optimizer.TFOptimizer"), private.get("base_optimizer.BaseOptimizer")
    assert issubclass(tensorflow_part, base)
    ours = set(vars(between))
    known = {
        "__init__",
        "add_variable_from_reference",  # creates slots: happens in build
        "add_variable",  # the same
        "_overwrite_model_variables_with_average_value",  # in place of which `_backend_apply_gradients` does it
        "_backend_maybe_overwrite_model_variables",  # the same, in newer ones
        "stateless_apply",  # only raises
        "_all_reduce_sum_gradients",  # called by the undone _backend_update_step only
        "_distributed_tf_update_step",  # the same
        "_backend_increment_gradient_accumulators",  # gradient accumulation, which Step refuses
        "_clip_by_norm",  # plain arithmetic
    }
    functions = {name for name, value in vars(tensorflow_part).items() if inspect.isfunction(value)}
    assert functions - ours - known == set(), "Keras's TFOptimizer has grown: does functional.py have to undo this?"
    overrides = {name for name in ours if inspect.isfunction(vars(between)[name])}
    known_to_all = set(vars(base))
    assert overrides - functions - known_to_all == set(), "functional.py overrides names that Keras has no more"
    variable = keras.Variable(np.zeros(3, "float32"))
    assert variable._value is variable.value
    optimizer = keras.optimizers.SGD()
    optimizer.build([variable])
    assert functional.trainable_variables(optimizer) == [variable]
