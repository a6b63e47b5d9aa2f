"""One cell of the table: a case trained by Loop on a strategy, and how far it is from what it must come to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where device_choice.py is

import device_choice
import numpy as np
import tensorflow as tf
from cases import EPOCHS, Case

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.strategy import has_copies
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction
from mirrorkit.train.step import tables
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.variables import copies, is_sharded, path

Outcome = dict[str, np.ndarray]  # everything that training changed, and the logs of every epoch, by name

OF_GRADIENT = ("clip_norm", "clip_value", "transforms")  # options that a step with variables has, too
FLOOR = 1e-6  # a cell may differ by this much, or by three times its control


def train(
    case: Case,
    strategy: tf.distribute.Strategy,
    *,
    layout: mk.parallel.Layout | None = None,
    shard_optimizer: bool = False,
    with_variables: bool = False,
) -> Outcome:
    """Train twenty steps with Loop; values are stacked from all replicas' copies, sharded slots are whole.

    Args:
        case: a row.
        strategy: where it is trained.
        layout: on which devices its layers lie.
        shard_optimizer: the option of `Step`.
        with_variables: each replica is to run Keras's step with variables of its own, as where it is no function.
    """
    keras.utils.clear_session(free_memory=False)  # a layout knows layers by their names, which Keras counts up
    with policy(case.policy), small_tables() if case.large_table else nullcontext():
        keras.utils.set_random_seed(0)
        with layout or nullcontext(), strategy.scope():
            model, optimizer = case.net(), case.optimizer()
        options = {**case.options, "shard_optimizer": shard_optimizer}
        if "weighted_metrics" in options:
            with strategy.scope():
                options["weighted_metrics"] = [make() for make in options["weighted_metrics"]]
        whole = case.large_table and has_copies(strategy) and layout is None and not shard_optimizer
        if whole and device_choice.DEVICE == "gpu":  # where it is not the default
            options["sparse_embeddings"] = True
        if with_variables:
            del options["shard_optimizer"]
            of_step = {name: options.pop(name) for name in OF_GRADIENT if name in options}
            with strategy.scope():  # the metrics' variables too
                measured = {"loss": case.loss(), "metrics": case.metrics(), **options}
                model.compile(optimizer, **measured, jit_compile=False, auto_scale_loss=False)
            step = mk.train.Step.from_compiled(model, **of_step)
        else:
            step = mk.train.Step(model, optimizer, loss=case.loss(), metrics=case.metrics(), **options)
        loop = mk.train.Loop(strategy, step, steps_per_call=3)
        with no_function() if with_variables else nullcontext():
            report = loop.fit(case.data(), epochs=EPOCHS, class_weight=case.class_weight, verbose=0)

    assert isinstance(step.for_loop(strategy), KerasStep) == with_variables
    if case.large_table and not with_variables:  # elsewhere its gradient is dense
        assert bool(step.for_loop(strategy).functions.tables) == whole
    if layout is not None:
        assert len({copies(variable)[0].device for variable in model.trainable_variables}) == 2
    slots = list(optimizer.variables)
    if shard_optimizer:
        names = f"{optimizer.name}/", "variable"  # as Keras calls Nadam's product
        slots = [variable for variable in step.saved_variables if path(variable).startswith(names)]
        assert any(map(is_sharded, step.variables)) == any(len(slot.shape) for slot in slots)

    def read(kind: str, variables: Any) -> Outcome:
        found = [strategy.experimental_local_results(getattr(variable, "value", variable)) for variable in variables]
        return {f"{kind}/{i}": np.stack([copy.numpy() for copy in own]) for i, own in enumerate(found)}

    values = read("weights", model.trainable_variables) | read("state", model.non_trainable_variables)
    values |= read("slots", slots)
    if "ema" in options:
        with step.averaged():
            values |= read("ema", model.trainable_variables)
    if "loss_scale" in options:
        values |= {"loss scale": np.float64(step.current_loss_scale), "skipped": np.int64(step.skipped_steps)}
    return values | {f"logs/{name}": np.asarray(value) for name, value in report.history.items()}


@contextmanager
def no_function() -> Iterator[None]:
    """No step is a function of values."""

    def refuse(*args: Any) -> Any:
        raise NotAFunction("it is to run with variables")

    with mock.patch.object(OwnStep, "found", refuse):
        yield


def halves(case: Case, replicas: int) -> mk.parallel.Layout:
    """Put the first half of a net's layers on the first device of each replica, and the others on the second."""
    keras.utils.clear_session(free_memory=False)
    names = list(dict.fromkeys(weight.path.rpartition("/")[0] for weight in case.net().trainable_variables))
    first = [f"^{re.escape(name)}/" for name in names[: len(names) // 2]]
    return mk.parallel.Layout({"|".join(first): 0}, default=1, devices=device_choice.first(2 * replicas))


def difference(found: Outcome, expected: Outcome) -> float:
    """The largest difference; where `found` stacks several replicas' copies, over all of them.

    Of floats above 1 it is relative: a loss of 400 is rounded 400 times as coarsely as a weight of 1.
    """
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    largest = []
    for name, value in expected.items():
        one, other = np.float64(found[name]), np.float64(value)
        size = np.maximum(1.0, np.abs(other)) if np.asarray(value).dtype.kind == "f" else 1.0
        largest.append(np.max(np.abs(one - other) / size, initial=0.0))
    return float(np.max(largest)) if np.isfinite(largest).all() else float("inf")


def bar(control: float) -> float:
    """The largest difference that rounding explains, given what another order of the same sums makes of it."""
    return max(3 * control, FLOOR)


@contextmanager
def small_tables() -> Iterator[None]:
    """Embeddings of a few rows are updated in place, whatever the optimizer; in blocks of some rows, and a rest."""
    with mock.patch.multiple(tables, _SOME_ROWS=0, _ALL_ROWS=0, _BLOCK=2400):
        yield


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Keras's dtype policy for the layers made inside."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
