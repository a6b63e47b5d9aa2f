"""Loop: epochs, calls of many steps, Keras callbacks, exact evaluation and prediction.

```python
loop = mk.train.Loop(strategy, step)
loop.warm_up(train)
report = loop.fit(train, epochs=2, validation_data=test, callbacks=[keras.callbacks.EarlyStopping("val_loss")])
loop.evaluate(test)
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.data import Recipe
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.timing import Throughput
from mirrorkit.train.calls import CallLength, Calls
from mirrorkit.train.custom import CustomStep, TrainStep
from mirrorkit.train.feed import Feed
from mirrorkit.train.report import Epoch, Report
from mirrorkit.train.snapshot import unchanged
from mirrorkit.train.step import Step

_EXAMPLES = 0  # index into a step's totals


class Loop:
    """Trains, evaluates and predicts with a step under a strategy.

    Args:
        strategy: from `mk.strategy.create`, or any `tf.distribute.Strategy`.
        step: `mk.train.Step`, or a step of your own (`mk.train.TrainStep`). What variables it needs are made in the
            strategy's scope.
        steps_per_call: training steps per compiled call; "auto" finds about half a second's worth. Batch hooks of
            callbacks come once per call, as with Keras's `steps_per_execution`.

    Raises:
        StepError: something that is no step, a step of another strategy, a call length below 1.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, step: Step | TrainStep, *, steps_per_call: int | str = "auto"
    ) -> None:
        if steps_per_call != "auto" and (not isinstance(steps_per_call, int) or steps_per_call < 1):
            raise StepError(f"steps_per_call must be a whole number from 1 on, or 'auto'; found {steps_per_call!r}.")
        self.strategy = strategy
        self.step = step
        self._step: Any = step if isinstance(step, Step) else CustomStep(step, strategy)
        self._step.build(strategy)
        self._length = CallLength(steps_per_call, self._step.accumulate)
        self._calls = Calls(strategy, self._step)
        self._warm = False
        self._steps_done = 0

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
        """Train for `epochs - initial_epoch` epochs.

        Args:
            data: a recipe such as `mk.data.batches(...)`, or a `tf.data.Dataset` of global batches `(x, y)` or
                `(x, y, sample_weight)`.
            epochs: the epoch before which to stop.
            initial_epoch: the epoch to start with; a recipe's order of examples depends on it.
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
            StepError: data that the step cannot train on.
        """
        if validation_freq < 1:
            raise StepError(f"validation_freq must be a whole number from 1 on, found {validation_freq!r}.")
        feed = Feed(self.strategy, data, steps=steps_per_epoch, carry_on=True, class_weight=class_weight)
        validation = None if validation_data is None else Feed(self.strategy, validation_data, steps=validation_steps)
        report = Report(throughput=Throughput(warm=self._warm))
        level = 1 if verbose == "auto" else int(verbose)
        hooks = self._callback_list(callbacks, add_history=True, verbose=level, epochs=epochs, steps=feed.steps)
        model = self._step.model
        model.stop_training = False
        hooks.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in range(initial_epoch, epochs):
            hooks.on_epoch_begin(epoch)
            logs = self._train_epoch(feed, epoch, hooks, report)
            if validation is not None and (epoch + 1) % validation_freq == 0:
                logs |= {f"val_{name}": value for name, value in self._evaluate(validation, hooks).items()}
            hooks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        hooks.on_train_end(logs)
        history = next(c for c in hooks.callbacks if isinstance(c, keras.callbacks.History))
        report.history = {name: list(values) for name, values in history.history.items()}
        return report

    def evaluate(
        self, data: Any, *, steps: int | None = None, callbacks: Sequence[Any] | None = None
    ) -> dict[str, float]:
        """Return loss and metrics over the whole data, every example counted once on any number of replicas.

        Args:
            data: a recipe, or a `tf.data.Dataset` of global batches `(x, y)` or `(x, y, sample_weight)`.
            steps: batches to evaluate; all by default.
            callbacks: Keras callbacks (`on_test_...`).
        """
        feed = Feed(self.strategy, data, steps=steps)
        return self._evaluate(feed, self._callback_list(callbacks, steps=feed.steps))

    def predict(self, data: Any, *, steps: int | None = None) -> Any:
        """Return the model's outputs for all examples, in the data's order, as NumPy arrays [N, ...].

        Args:
            data: a recipe, or a `tf.data.Dataset` of global batches `x`, `(x, y)` or `(x, y, sample_weight)`.
            steps: batches to predict; all by default.
        """
        self._require_model("predict")
        feed = Feed(self.strategy, data, steps=steps)
        parts = [part for batch in feed.batches() for part in self._calls.predict(batch)]
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
        with unchanged(self.strategy, variables):
            feed = self._whole_feed(data)
            self._step.prepare(feed.element_spec)
            for number, (stream, least) in enumerate(feed.rehearsals(self._step.accumulate)):
                for steps in self._length.probes() if number == 0 else (least,):
                    result = self._calls.train(stream, self._zeros(), min(steps, stream.left or steps))
                    stream.position -= result.steps
                    self._length.learn(result.steps, result.seconds)
            if isinstance(self._step, Step):
                feed = feed if validation_data is None else self._whole_feed(validation_data)
                for stream, _ in feed.rehearsals():
                    self._calls.test(stream, self._zeros(), 1)
        self._warm = True

    def _train_epoch(self, feed: Feed, epoch: int, hooks: Any, report: Report) -> dict[str, Any]:
        stream = feed.epoch(epoch)
        self._step.prepare(feed.element_spec)
        totals, logs = self._zeros(), {}
        record = Epoch(examples=0, steps=0, seconds=0.0)
        for first in iter(lambda: record.steps, feed.steps):
            steps = self._length.next(feed.left(first))
            hooks.on_train_batch_begin(first)
            result = self._calls.train(stream, totals, steps)
            if result.steps == 0:  # the end of data whose length nobody knew
                break
            self._check_finite(result.first_bad_step, epoch, first)
            examples = int(result.totals[_EXAMPLES]) - int(totals[_EXAMPLES])
            totals = result.totals
            self._length.learn(result.steps, result.seconds)
            self._steps_done += result.steps
            report.throughput.record(examples=examples, steps=result.steps, seconds=result.seconds)
            record.add(examples, result.steps, result.seconds)
            logs = self._logs(totals)
            hooks.on_train_batch_end(first + result.steps - 1, logs)
            if self._step.model.stop_training:
                break
        if record.steps == 0:
            raise StepError("The data gave no batch. Check its path, filters and drop_remainder.")
        report.epochs.append(record)
        return dict(logs)

    def _evaluate(self, feed: Feed, hooks: Any) -> dict[str, Any]:
        self._require_model("evaluate")
        stream = feed.epoch(0, restart=True)
        self._step.prepare(feed.element_spec)
        totals, done = self._zeros(), 0
        hooks.on_test_begin()
        while done != feed.steps:
            steps = self._length.next(feed.left(done))
            hooks.on_test_batch_begin(done)
            result = self._calls.test(stream, totals, steps)
            if result.steps == 0:
                break
            totals = result.totals
            done += result.steps
            hooks.on_test_batch_end(done - 1, self._logs(totals))
        if done == 0:
            raise StepError("The data gave no batch. Check its path, filters and drop_remainder.")
        logs = self._logs(totals)
        hooks.on_test_end(logs)
        return logs

    def _whole_feed(self, data: Any) -> Feed:
        # A dataset of the user's may never end, and zeros stand in for it anyway.
        return Feed(self.strategy, data, steps=None if isinstance(data, Recipe) else 1)

    def _zeros(self) -> tf.Tensor:
        return tf.zeros([self._step.totals_size], tf.float64)

    def _logs(self, totals: tf.Tensor) -> dict[str, Any]:
        values = {name: np.asarray(value) for name, value in self._step.logs(totals).items()}
        return {name: value.item() if value.ndim == 0 else value for name, value in values.items()}

    def _check_finite(self, bad: int | None, epoch: int, first: int) -> None:
        if bad is not None:
            raise NonFiniteLossError(
                f"The loss became NaN or infinite at training step {self._steps_done + bad} (epoch {epoch}, batch "
                f"{first + bad} of it; all counted from 0). Lower the learning rate, give Step a clip_norm, or look "
                "for bad values in that batch.",
                step=self._steps_done + bad,
            )

    def _require_model(self, what: str) -> None:
        if not isinstance(self._step, Step):
            raise StepError(f"{what} needs a mk.train.Step; {type(self.step).__name__} only trains. Call its model.")

    def _callback_list(
        self,
        callbacks: Sequence[Any] | None,
        *,
        steps: int | None,
        add_history: bool = False,
        verbose: int = 0,
        epochs: int = 1,
    ) -> Any:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        return keras.callbacks.CallbackList(
            keras.tree.flatten(callbacks or []),
            add_history=add_history,
            add_progbar=verbose != 0,
            model=self._step.model,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
