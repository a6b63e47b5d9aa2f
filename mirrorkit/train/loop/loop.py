"""Loop: epochs, calls of many steps, Keras callbacks, exact evaluation and prediction.

```python
loop = mk.train.Loop(strategy, step)
loop.warm_up(train)
report = loop.fit(train, epochs=2, validation_data=test, callbacks=[keras.callbacks.EarlyStopping("val_loss")])
loop.evaluate(test)
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.data import Recipe
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_parameter_server, of_all_workers
from mirrorkit.timing import Throughput
from mirrorkit.train.checkpoints import require_variables, restore_newest
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.loop.coordinator import calls_for, explained
from mirrorkit.train.loop.feed import Feed
from mirrorkit.train.loop.hooks import (
    acting_on_batches,
    agree_to_stop,
    callback_list,
    choose_modes,
    release,
    tell_of_batch_hooks,
)
from mirrorkit.train.loop.passes import NO_BATCH, Passes, Traced
from mirrorkit.train.loop.report import Report
from mirrorkit.train.step.custom import CustomStep, TrainStep
from mirrorkit.train.step.requirements import check_class_targets
from mirrorkit.train.step.step import Step
from mirrorkit.whole import is_whole


class Loop:
    """Trains, evaluates and predicts with a step under a strategy.

    Args:
        strategy: from `mk.strategy.create`, or any `tf.distribute.Strategy`.
        step: `mk.train.Step`, or a step of your own (`mk.train.TrainStep`). What variables it needs are made in the
            strategy's scope.
        steps_per_call: training steps per compiled call. Batch hooks of callbacks come once per call, as with Keras's
            `steps_per_execution`. "auto" finds about half a second's worth, but takes one step per call (one update,
            with `accumulate`) in a `fit` with a callback whose batch hooks are your own: it may act on every batch, as
            one that sets the learning rate does. A number is kept to; hooks that only look are cheaper with 50, say.
        jit_compile: have XLA compile whole calls: data, model and update become one program. For a single replica and
            `mk.data.resident`; other calls are made as without it. Small dense models gain; convolutions on CPU become
            many times slower. XLA checks no values: an index out of range is taken for the nearest, a label out of
            range makes NaN, assertions do nothing. So train without it first.

    Attributes:
        position: where the training stands: epoch, batch, steps, history.
        feed: the data of the fit that is running, for callbacks that look at it again; None between fits.

    Raises:
        StepError: something that is no step, a step of another strategy, an argument that cannot be.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        step: Step | TrainStep,
        *,
        steps_per_call: int | str = "auto",
        jit_compile: bool = False,
    ) -> None:
        if steps_per_call != "auto":
            steps_per_call = _whole("steps_per_call", steps_per_call, 1, or_else=", or 'auto'")
        if not isinstance(jit_compile, bool):
            raise StepError(f"jit_compile must be True or False; found {jit_compile!r}.")
        self.strategy = strategy
        self.step = step
        self._step: Any = step if isinstance(step, Step) else CustomStep(step, strategy)
        self._step.build(strategy)
        self._calls, length = calls_for(strategy, self._step, steps_per_call, jit_compile=jit_compile)
        self._passes = Passes(strategy, self._step, self._calls, length)
        self._auto = steps_per_call == "auto"
        self._told_of_hooks = False
        self._warm = False
        self._restored = False  # and not gone on since
        self.position = Position()
        self.feed: Feed | None = None

    @property
    def steps_per_call(self) -> int:
        """How many steps the next whole call takes; with "auto" it is found from the first calls."""
        return self._passes.steps_per_call

    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        validation_freq: int = 1,
        validation_steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        verbose: int | str = "auto",
        class_weight: Mapping[int, float] | None = None,
    ) -> Report:
        """Train for `epochs - initial_epoch` epochs, or what is left of them after `restore`.

        Args:
            data: a recipe such as `mk.data.batches(...)`, or a `tf.data.Dataset` of global batches `(x, y)` or
                `(x, y, sample_weight)`.
            epochs: the epoch before which to stop.
            initial_epoch: the epoch to start with, unless one was restored; a recipe's order of examples depends on it.
            steps_per_epoch: needed where the data never ends; otherwise an epoch is all the data. With it, a
                `tf.data.Dataset` goes on where the epoch before stopped; a recipe gives each epoch's first steps.
            validation_data: what `evaluate` takes; its logs appear with the prefix `val_`.
            validation_freq: validate after every so many epochs.
            validation_steps: batches to validate on; all by default.
            callbacks: Keras callbacks.
            verbose: 0 for silence, 1 or "auto" for a progress bar, 2 for a line per epoch.
            class_weight: from class index to the weight of its examples.

        Returns:
            History, speed and the seconds of each epoch.

        Raises:
            NonFiniteLossError: the loss became NaN or infinite.
            StepError: data that the step cannot train on, an argument that cannot be.
            CheckpointError: what was restored does not fit this data or these metrics; see also `Checkpoints`.
        """
        if getattr(self.step, "is_averaged", False):
            raise StepError(
                "fit was called within step.averaged(), where the weights are averages and would be lost at its end. "
                "Leave the block before training goes on."
            )
        epochs, initial_epoch = _whole("epochs", epochs, 0), _whole("initial_epoch", initial_epoch, 0)
        validation_freq = _whole("validation_freq", validation_freq, 1)
        if verbose not in ("auto", 0, 1, 2):
            raise StepError(f"verbose must be 0, 1, 2 or 'auto'; found {verbose!r}.")
        if validation_data is not None:
            self._require_model("evaluate")
        feed = Feed(self.strategy, data, steps=steps_per_epoch, carry_on=True, class_weight=class_weight)
        validation = None if validation_data is None else Feed(self.strategy, validation_data, steps=validation_steps)
        report = Report(throughput=Throughput(warm=self._warm))
        model = self._step.model
        if class_weight:
            check_class_targets(model, feed.element_spec)
        model.stop_training = False
        if not self._restored:
            self.position = Position(epoch=initial_epoch, steps=self.position.steps)
        level = 1 if verbose == "auto" else int(verbose)
        hooks = callback_list(self, model, callbacks, history=True, verbose=level, epochs=epochs, steps=feed.steps)
        self.feed = feed
        try:
            with explained(self.strategy, data, validation_data):
                self._step.prepare(feed.element_spec)
                choose_modes(hooks, self._step.modes)
                each_step = self._takes_each_step(callbacks)
                hooks.on_train_begin()  # may restore
                position, resumed, self._restored = self.position, self._restored, False
                keras_history = next(c for c in hooks.callbacks if isinstance(c, keras.callbacks.History))
                keras_history.history = position.history
                logs: dict[str, float] = {}
                while position.epoch < epochs and position.ended < epochs:
                    epoch = position.epoch
                    hooks.on_epoch_begin(epoch)
                    how = {"resumed": resumed, "each_step": each_step}
                    logs = self._passes.train(feed, position, hooks, report, **how)
                    if validation is not None and (epoch + 1) % validation_freq == 0:
                        val_logs = self._passes.test(validation, hooks)
                        logs |= {f"val_{name}": value for name, value in val_logs.items()}
                    position.next_epoch()
                    hooks.on_epoch_end(epoch, logs)
                    agree_to_stop(self.strategy, model)
                    resumed = False
                    if model.stop_training:
                        break
                position.ended = epochs
                hooks.on_train_end(logs)
        finally:
            release(hooks)
            self.feed = None
        report.history = {name: list(values) for name, values in position.history.items()}
        report.skipped_steps = getattr(self.step, "skipped_steps", 0)
        return report

    def evaluate(
        self,
        data: Any,
        *,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        on_chief: bool = False,
    ) -> dict[str, float]:
        """Return loss and metrics over the whole data, every example counted once on any number of replicas.

        Args:
            data: a recipe, or a `tf.data.Dataset` of global batches `(x, y)` or `(x, y, sample_weight)`.
            steps: batches to evaluate; all by default.
            callbacks: Keras callbacks (`on_test_...`).
            on_chief: under parameter servers, compute in this process instead of on the workers.
        """
        self._require_model("evaluate")
        local = on_chief and is_parameter_server(self.strategy)
        feed = Feed(self._calls.chief if local else self.strategy, data, steps=steps)
        hooks = callback_list(self, self._step.model, callbacks, steps=feed.steps)
        with explained(self.strategy, data):
            return self._passes.test(feed, hooks, local=local)

    def predict(self, data: Any, *, steps: int | None = None) -> Any:
        """Return the model's outputs for all examples, in the data's order, as NumPy arrays [N, ...].

        Args:
            data: a recipe, or a `tf.data.Dataset` of global batches `x`, `(x, y)` or `(x, y, sample_weight)`.
            steps: batches to predict; all by default.
        """
        self._require_model("predict")
        feed = Feed(self.strategy, data, steps=steps)
        with explained(self.strategy, data):
            parts = list(self._calls.predictions(feed.batches()))
        if not parts:
            raise StepError(NO_BATCH)
        return tf.nest.map_structure(lambda *part: np.concatenate([p.numpy() for p in part]), *parts)

    def warm_up(self, data: Any, *, validation_data: Any = None) -> None:
        """Compile and run every function on batches of the real shape, and leave everything as it was.

        Afterwards weights, optimizer state, random generators and the position in the data are bit for bit what they
        were; the first real step then costs what every step costs. A `tf.data.Dataset` of your own is not read: zeros
        of its shapes stand in.

        Args:
            data: what `fit` will be given.
            validation_data: what `evaluate` will be given; `data` by default.
        """
        variables = self._step.variables
        if not variables:
            raise StepError(
                f"{type(self.step).__name__} does not say what it changes, so warm_up could not put it back. Give it a "
                "property `variables`: a list of all variables that its update writes."
            )
        training, testing = self._whole_feeds(data, validation_data)
        with explained(self.strategy, data, validation_data):
            self._passes.rehearse(training, testing)
        self._warm = True

    def traced(self, data: Any, *, validation_data: Any = None) -> list[Traced]:
        """Trace the functions that `fit`, `evaluate` and `predict` would call, and run none; see `mk.checks.placement`.

        Args:
            data: what `fit` will be given.
            validation_data: what `evaluate` will be given; `data` by default.
        """
        return list(self._passes.traced(*self._whole_feeds(data, validation_data)))

    def restore(self, folder: str | os.PathLike[str]) -> Position:
        """Put everything back to where the newest whole checkpoint in a folder was made; the next `fit` goes on there.

        `mk.train.Checkpoints` calls this at the beginning of `fit`; call it yourself to evaluate or to look.

        Args:
            folder: that of `mk.train.Checkpoints`.

        Returns:
            Epoch, batch, steps and history of the run.

        Raises:
            CheckpointError: there is no checkpoint, none is whole, or it is of another model; then nothing is changed.
        """
        self.position = restore_newest(folder, require_variables(self.step))
        self._restored = True
        return self.position

    def _takes_each_step(self, callbacks: Sequence[Any] | None) -> bool:
        """Whether a callback wants calls of one step; on several workers, a callback of any of them."""
        if not self._auto:
            return False
        acting = acting_on_batches(callbacks)
        if acting and not self._told_of_hooks:
            tell_of_batch_hooks(self.strategy, acting)
            self._told_of_hooks = True
        return bool(max(of_all_workers(self.strategy, bool(acting)))) and not is_parameter_server(self.strategy)

    def _whole_feeds(self, data: Any, validation_data: Any) -> tuple[Feed, Feed | None]:
        training = self._whole_feed(data)
        if not isinstance(self._step, Step):
            return training, None
        return training, training if validation_data is None else self._whole_feed(validation_data)

    def _whole_feed(self, data: Any) -> Feed:
        # A dataset of the user's may never end, and zeros stand in for it anyway.
        return Feed(self.strategy, data, steps=None if isinstance(data, Recipe) else 1)

    def _require_model(self, what: str) -> None:
        if not isinstance(self._step, Step):
            raise StepError(f"{what} needs a mk.train.Step; {type(self.step).__name__} only trains. Call its model.")


def _whole(name: str, value: Any, least: int, *, or_else: str = "") -> int:
    """Return a whole number, NumPy's too, as an int."""
    if not is_whole(value, least):
        raise StepError(f"{name} must be a whole number from {least} on{or_else}; found {value!r}.")
    return int(value)
