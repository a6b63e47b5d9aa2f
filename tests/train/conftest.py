"""What the tests of training share: small nets, small data, and a look at every replica's copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from training_helpers import as_new, line_net

import mirrorkit as mk
from mirrorkit._keras import keras


@pytest.fixture(autouse=True)
def every_check_ran(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    """A check that raises an error of its own leaves a warning, and the training goes on."""
    yield
    if request.node.get_closest_marker("cannot_compare") is None:
        assert "could not be compared" not in " ".join(record.getMessage() for record in caplog.get_records("call"))


@pytest.fixture(scope="session")
def make_loop(strategy_of: Callable[..., Any]) -> Callable[..., mk.train.Loop]:
    """`make_loop((kind, replicas), net, optimizer=..., **Step's options)`; the same seed gives the same weights.

    `net` and `optimizer` are called in the strategy's scope.
    """

    def make(
        where: tuple[str, int],
        net: Callable[[], Any],
        optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1),
        *,
        loss: Any = "mse",
        steps_per_call: int | str = 3,
        **options: Any,
    ) -> mk.train.Loop:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, made = net(), optimizer()
        step = mk.train.Step(model, made, loss=loss, **options)
        return mk.train.Loop(strategy, step, steps_per_call=steps_per_call)

    return make


@pytest.fixture(scope="session")
def loop_over(strategy_of: Callable[..., Any]) -> Callable[..., mk.train.Loop]:
    """`loop_over(make, where=two replicas, **options)`: over the step or the compiled model that `make` returns.

    It is called in the strategy's scope; the same seed gives the same weights. The options are those of a compiled
    model's step.
    """

    def over(
        make: Callable[[], Any],
        where: tuple[str, int] = ("mirrored", 2),
        *,
        steps_per_call: int | str = "auto",
        **options: Any,
    ) -> mk.train.Loop:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            made = make()
        step = mk.train.Step.from_compiled(made, **options) if isinstance(made, keras.Model) else made
        return mk.train.Loop(strategy, step, steps_per_call=steps_per_call)

    return over


@pytest.fixture
def copies() -> Callable[..., list[list[np.ndarray]]]:
    """`copies(loop)`: for each variable of the loop's step the values on all replicas."""

    def read(loop: Any, variables: Sequence[Any] | None = None) -> list[list[np.ndarray]]:
        variables = loop.step.variables if variables is None else variables
        return [
            [copy.numpy() for copy in loop.strategy.experimental_local_results(getattr(v, "value", v))]
            for v in variables
        ]

    return read


@pytest.fixture
def assert_replicas_equal(copies: Callable[..., Any]) -> Callable[[Any], None]:
    """`assert_replicas_equal(loop)`: every variable has the same bits on all replicas."""

    def check(loop: Any) -> None:
        for variable, values in zip(loop.step.variables, copies(loop), strict=True):
            for value in values[1:]:
                np.testing.assert_array_equal(values[0], value, err_msg=getattr(variable, "path", ""))

    return check


@pytest.fixture
def other_workers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[np.ndarray]]:
    """`other_workers(module, *changes)`: more workers send what this one does, each changed by a function.

    Of all that the functions of the module exchange. Returns a list that gets what this one sends.
    """

    def make(module: Any, *changes: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        sent: list[np.ndarray] = []

        def arrays(strategy: Any, own: np.ndarray) -> np.ndarray:
            sent.append(own)
            return np.array([own, *(change(own.copy()) for change in changes)])

        names = {f"worker {number}": "" for number in range(1 + len(changes))}
        monkeypatch.setattr(module, "num_workers", lambda strategy: len(names), raising=False)
        monkeypatch.setattr(module, "addresses", lambda strategy: names)
        monkeypatch.setattr(module, "arrays_of_all_workers", arrays)
        return sent

    return make


@pytest.fixture(scope="session")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Float inputs [60, 4] and targets [60, 1] that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32") + 0.1 * rng.normal(size=(60, 1))
    return x, y.astype("float32")


@pytest.fixture(scope="session")
def _line(make_loop: Callable[..., Any]) -> mk.train.Loop:
    momentum = lambda: keras.optimizers.SGD(0.05, momentum=0.5)  # noqa: E731
    return make_loop(("mirrored", 2), line_net, momentum, metrics=["mae"], steps_per_call=2)


@pytest.fixture
def line(_line: Any) -> mk.train.Loop:
    """A linear model on two replicas, two steps per call, as new for each test and compiled once for all."""
    return as_new(_line)


@pytest.fixture
def recipe(numbers: tuple[np.ndarray, np.ndarray]) -> mk.data.Batches:
    """`numbers` in five batches of 12, shuffled."""
    return mk.data.batches(mk.data.arrays(*numbers), global_batch_size=12, shuffle=True, seed=2)


@pytest.fixture(scope="session")
def fixed_line(make_loop: Callable[..., Any]) -> Callable[[tuple[str, int]], mk.train.Loop]:
    """`fixed_line(where)`: a linear model with round weights, compiled once per strategy; leave it as it is."""
    made: dict[tuple[str, int], mk.train.Loop] = {}

    def get(where: tuple[str, int]) -> mk.train.Loop:
        if where not in made:
            made[where] = make_loop(where, line_net, metrics=["mae"])
            made[where].step.model.set_weights([np.array([[1.0], [0.5], [-1.0], [2.0]]), np.array([0.25])])
        return made[where]

    return get
