"""What a loop keeps from call to call: its step, built, and the compiled functions; how it evaluates with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.strategy import is_parameter_server, of_all_workers, require_same
from mirrorkit.train.calls.compiled import Calls
from mirrorkit.train.calls.errors import require_examples
from mirrorkit.train.calls.length import CallLength
from mirrorkit.train.first_batch.check import first_batch_check
from mirrorkit.train.first_batch.later import LaterChecks
from mirrorkit.train.input.input import Input
from mirrorkit.train.loop.callbacks import leave_on_signal, some_act_on_test_batches
from mirrorkit.train.parameter_server.calls import RemoteCallLength, RemoteCalls
from mirrorkit.train.step.loop_step import LoopStep, Pass
from mirrorkit.variables import Snapshot

EXAMPLES = 0  # index into a step's totals


class Passes:
    """A step in a loop, and what was compiled for it; `test` evaluates, and a `Fit` trains.

    Attributes:
        step: the step, once built.
        calls: the compiled functions.
        length: how many steps a call takes.
        later: the checks that are made later in the training.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: LoopStep, steps_per_call: int | str) -> None:
        self._strategy = strategy
        self.step = step
        remote = is_parameter_server(strategy)
        self._is_auto = steps_per_call == "auto" and not remote
        require_same(strategy, "loop", {"steps_per_call": steps_per_call})
        self.calls = (RemoteCalls if remote else Calls)(strategy, step)
        self.later = LaterChecks(step)
        self.length = (RemoteCallLength if remote else CallLength)(strategy, steps_per_call, step.accumulate)

    def test(self, data: Input, hooks: Any, *, averaged: bool = False, within: bool = False) -> dict[str, Any]:
        """Evaluate all the data from its beginning, perhaps with the averages of the weights; return logs.

        `within` says that it is within a fit, whose metrics go on after it.
        """
        if averaged:
            with self.step.averaged():
                return self.test(data, hooks, within=within)
        self.step.prepare(data.element_spec, "test")
        batches = data.epoch(0, look_at=1, check=first_batch_check(self.step, "test"))
        totals, done = self.zeros("test"), 0
        of_epoch = Snapshot(self.step.of_epoch if within else [])
        self.step.begin("test")
        self.step.model.stop_evaluating = False
        each_step = self._is_auto and some_act_on_test_batches(self._strategy, hooks)
        hooks.on_test_begin()
        while done != data.steps:
            hooks.on_test_batch_begin(done)
            result = self.calls.call("test", batches, totals, 1 if each_step else self.length.next(data.left(done)))
            if result.steps == 0:
                break
            totals = result.totals
            done += result.steps
            hooks.on_test_batch_end(done - 1, self.logs(totals, "test"))
            leave_on_signal(self._strategy, self.step.model, hooks, before=of_epoch.put_back)
            if max(of_all_workers(self._strategy, bool(self.step.model.stop_evaluating))):
                break
        require_examples(done, int(totals[EXAMPLES]))
        logs = self.logs(totals, "test")
        hooks.on_test_end(logs)
        of_epoch.put_back()
        return logs

    def zeros(self, what: Pass = "train") -> tf.Tensor:
        """Return the totals of no batch."""
        return tf.zeros([self.step.totals_size(what)], tf.float64)

    def logs(self, totals: tf.Tensor, what: Pass = "train") -> dict[str, Any]:
        """Return what follows from totals, by name."""
        values = {name: np.asarray(value) for name, value in self.step.logs(totals, what).items()}
        return {name: value.item() if value.ndim == 0 else value for name, value in values.items()}
