"""Loop: epochs, calls of many steps, Keras callbacks, exact evaluation and prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, KerasCallback, Nest, Spec
from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.data import Recipe
from mirrorkit.errors import StepError
from mirrorkit.strategy import chosen, is_chief, is_parameter_server, of_all_workers
from mirrorkit.timing import Throughput
from mirrorkit.train.calls.errors import explained, joined, require_examples
from mirrorkit.train.checkpoints import Restored, restore_newest
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.first_batch.check import first_batch_check
from mirrorkit.train.input.input import Input
from mirrorkit.train.input.keras_data import CarriedOn, Data, PyBatches, data_of_fit, keras_data, takes_order
from mirrorkit.train.keras_model.building import is_built
from mirrorkit.train.loop.callbacks import (
    begin_states,
    callback_list,
    choose_modes,
    end_training,
    keras_calls_guarded,
    release,
    some_act_on_batches,
    verbosity,
)
from mirrorkit.train.loop.entering import Entered, one_at_a_time
from mirrorkit.train.loop.finite import FiniteWatch
from mirrorkit.train.loop.fit import Fit
from mirrorkit.train.loop.passes import Passes
from mirrorkit.train.loop.report import Report
from mirrorkit.train.loop.validation import Validation
from mirrorkit.train.parameter_server.calls import RemoteCalls
from mirrorkit.train.requirements.data import check_class_targets
from mirrorkit.train.requirements.model import variables_of
from mirrorkit.train.step.custom import Custom, TrainStep
from mirrorkit.train.step.loop_step import LoopStep, Need
from mirrorkit.train.step.step import Step
from mirrorkit.variables import unchanged


class Loop:
    """Trains, evaluates and predicts with a step under a strategy.

    ```python
    loop = mk.train.Loop(strategy, step)
    report = loop.fit(train, epochs=2, validation_data=test)
    ```

    Args:
        strategy: from `mk.strategy.create`, or any `tf.distribute.Strategy`.
        step: `mk.train.Step`, or a step of your own (`mk.train.TrainStep`). The variables it needs are created in the
            strategy's scope. A model that is not built is built from the first data, as in Keras.
        steps_per_call: training steps per compiled call. Batch hooks of callbacks come once per call, as with Keras's
            `steps_per_execution`. "auto" takes about half a second's worth. With a callback that has its own batch
            hooks, it takes one step per call (one update, with `accumulate`): hooks may act on every batch, such as set
            the learning rate. If they only observe, a number such as 50 is faster.

    Attributes:
        position: where the training stands: epoch, batch, steps, history.

    Raises:
        StepError: `step` is not a step or was built for another strategy, or an argument is invalid.
    """

    @checks_arguments(StepError)
    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        step: Step | TrainStep,
        *,
        steps_per_call: int | str = "auto",
    ) -> None:
        if steps_per_call != "auto":
            steps_per_call = whole_number("steps_per_call", steps_per_call, StepError, or_else=", or 'auto'")
        self.strategy = strategy
        self.step = step
        self._steps_per_call = steps_per_call
        self._passes: Passes | None = None
        needs_data = isinstance(step, Step) and (step.runs_keras or not is_built(step.model))
        if not needs_data or getattr(step, "strategy", None) is not None:
            self._built()
        self._told_where = self._told_of_hooks = False
        self._warm = False
        self._restored: Restored | None = None  # where the next fit goes on
        self.running: Fit | None = None  # which mirrorkit's own callbacks ask too
        self._entered, self.position = Entered(), Position()

    @property
    def steps_per_call(self) -> int:
        """How many steps the next whole call takes; with "auto" it is found from the first calls."""
        if self._passes is not None:
            return self._passes.length.next(None)
        return 1 if self._steps_per_call == "auto" else int(self._steps_per_call)

    def _built(self, element_spec: Spec = None) -> Passes:
        """Build what is not built: the step, and from the data's element spec its model."""
        step: LoopStep
        if isinstance(self.step, Step):
            step = self.step.for_loop(self.strategy, element_spec)
        else:
            step = self._passes.step if self._passes else Custom(self.strategy, self.step)
        if self._passes is None or self._passes.step is not step:
            self._passes = Passes(self.strategy, step, self._steps_per_call)
        return self._passes

    def _reads(
        self, data: Data, need: Need, class_weight: Mapping[int, float] | None = None, **options: Any
    ) -> tuple[Passes, Input]:
        """Return the step, built if it was not, and the data as an `Input`, which takes `options`."""
        inputs = Input(self.strategy, data, class_weight=class_weight, **options)
        passes = self._built(inputs.given_spec)
        passes.step.require(need)
        if class_weight:
            passes.step.require("class_weight")
            check_class_targets(passes.step.model, inputs.element_spec)
        return passes, inputs

    @checks_arguments(StepError)
    @one_at_a_time
    def fit(
        self,
        /,
        data: Any,
        y: Nest = None,
        *,
        batch_size: int | None = None,
        sample_weight: Nest = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        epochs: int = 1,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        validation_steps: int | None = None,
        validation_averaged: bool = False,
        validate_every: int | None = None,
        callbacks: Sequence[KerasCallback] | None = None,
        verbose: int | str = "auto",
        class_weight: Mapping[int, float] | None = None,
    ) -> Report:
        """Train for `epochs - initial_epoch` epochs, or what is left of them after `restore`.

        Args:
            data: a recipe such as `mk.data.batches(...)`, or a `tf.data.Dataset` of global batches: `(x, y)` or `(x, y,
                sample_weight)` for a model and its losses; for `Step.from_loss` and a step of your own, any nest of
                tensors with the rows as first dimension. Or what else Keras's `fit` takes: arrays [N, ...] (also in
                tuples, lists and dicts), a `keras.utils.PyDataset`, on one worker a generator.
            y: with arrays, the targets.
            batch_size: with arrays, examples per step over all replicas together; 32 by default.
            sample_weight: with arrays, how much each example counts.
            shuffle: of arrays, or of the batches of a PyDataset: a new order in each epoch, by default.
            seed: fixes that order. By default it is drawn from NumPy's global generator, which
                `keras.utils.set_random_seed` sets; the report has it.
            epochs: the epoch before which to stop.
            initial_epoch: the epoch to start with, unless one was restored; a recipe's order of examples depends on it.
            steps_per_epoch: required if the data never ends; by default an epoch is all the data. With it, a
                `tf.data.Dataset` goes on where the last epoch stopped; a recipe gives each epoch's first steps.
            validation_data: what `evaluate` takes, arrays as `(x, y)` or `(x, y, sample_weight)`; its logs appear with
                the prefix `val_`.
            validation_split: of arrays, the part at the end to validate on.
            validation_batch_size: of arrays to validate on; `batch_size` by default.
            validation_freq: validate after every so many epochs, or after those in a list, counted from 1.
            validation_steps: batches to validate on; all by default.
            validation_averaged: validate on the averages of the weights, as in `with step.averaged()`.
            validate_every: validate after every so many steps within an epoch too; `on_train_batch_end` of that step
                sees the `val_` logs, the history does not.
            callbacks: Keras callbacks.
            verbose: 0 for silence, 1 for a progress bar, 2 for a line per epoch; "auto" means 1 in a terminal or a
                notebook, else 2.
            class_weight: a dict from class index to the weight of its examples.

        Returns:
            History, speed and the seconds of each epoch.

        Raises:
            NonFiniteLossError: the loss became NaN or infinite, or a variable did while the loss stayed finite. With
                `keras.callbacks.TerminateOnNaN` such a loss ends the training and is in the history, as in Keras.
            StepError: the step cannot train on the data, or an argument is invalid.
            CheckpointError: what was restored does not fit this data or these metrics; see also `Checkpoints`.
        """
        if getattr(self.step, "is_averaged", False):
            raise StepError(
                "fit was called within step.averaged(), where the weights are averages and would be lost at its end. "
                "Leave the block before training goes on."
            )
        epochs = whole_number("epochs", epochs, StepError, least=0)
        initial_epoch = whole_number("initial_epoch", initial_epoch, StepError, least=0)
        carries_on = steps_per_epoch is not None and takes_order(data)
        data, validation_data, seed = data_of_fit(
            self.strategy,
            (data, y, sample_weight),
            validation_data,
            batch_size=batch_size,
            validation_batch_size=validation_batch_size,
            validation_split=validation_split,
            steps=steps_per_epoch,
            validation_steps=validation_steps,
            shuffle=shuffle,
            seed=seed,
        )
        if carries_on and isinstance(data, Recipe):  # and no generator
            data = CarriedOn(data, whole_number("steps_per_epoch", steps_per_epoch, StepError))
        passes, training = self._reads(data, "train", class_weight, steps=steps_per_epoch, carry_on=True)
        step, model = passes.step, passes.step.model
        if validation_data is not None:
            step.require("evaluate")
        if validation_averaged:
            step.averaged()  # raises where there are none
        validation = Validation(
            self.strategy, validation_data, validation_steps, validation_freq, validate_every, validation_averaged
        )
        report = Report(throughput=Throughput(warm=self._warm), seed=seed)
        model.stop_training = False
        if self._restored is None:
            self.position = Position(epoch=initial_epoch, first_epoch=initial_epoch, steps=self.position.steps)
        hooks = callback_list(
            self,
            model,
            callbacks,
            history=True,
            verbose=verbose,
            epochs=epochs,
            steps=training.steps,
            global_batch_size=training.global_batch_size,
            class_weight=class_weight,
            **validation.asked,
        )
        if not self._told_where and verbosity(verbose) and is_chief(self.strategy):
            print(chosen(self.strategy), flush=True)
        self._told_where = True
        try:
            with keras_calls_guarded(self.strategy, model), explained(self.strategy):
                step.prepare(training.element_spec)
                choose_modes(hooks, step.modes)
                each_step = self._takes_each_step(callbacks)
                hooks.on_train_begin()  # may restore
                position = self.position
                finite = FiniteWatch(self.strategy, step, position, hooks.callbacks)
                states = begin_states(self, model, hooks, callbacks, self._restored)
                training.first_epoch, self._restored = position.first_epoch, None
                if isinstance(data, CarriedOn | PyBatches):
                    data.first_epoch = position.first_epoch
                self.running = Fit(
                    self.strategy, passes, position, training, validation, hooks, states, finite, report, each_step
                )
                logs = self.running.run(epochs)
                end_training(self.strategy, step, hooks, logs)
        finally:
            release(hooks)
            self.running = None
        report.history = {name: list(values) for name, values in position.history.items()}
        report.skipped_steps = getattr(self.step, "skipped_steps", 0)
        return report

    @checks_arguments(StepError)
    @one_at_a_time
    def evaluate(
        self,
        /,
        data: Any,
        y: Nest = None,
        *,
        batch_size: int | None = None,
        sample_weight: Nest = None,
        steps: int | None = None,
        callbacks: Sequence[KerasCallback] | None = None,
        verbose: int | str = 0,
    ) -> dict[str, float]:
        """Return loss and metrics over the whole data, every example counted once on any number of replicas.

        Args:
            data, y, batch_size, sample_weight: as `fit` takes it.
            steps: batches to evaluate; all by default.
            callbacks: Keras callbacks (`on_test_...`).
            verbose: as in `fit`.
        """
        data = keras_data(self.strategy, data, y, sample_weight, batch_size=batch_size, steps=steps)
        passes, inputs = self._reads(data, "evaluate", steps=steps)
        hooks = callback_list(self, passes.step.model, callbacks, verbose=verbose, epochs=1, steps=inputs.steps)
        with explained(self.strategy):
            return passes.test(inputs, hooks, within=self.running is not None)

    @checks_arguments(StepError)
    @one_at_a_time
    def predict(self, /, data: Any, *, batch_size: int | None = None, steps: int | None = None) -> Nest:
        """Return the model's outputs for all examples, in the data's order, as NumPy arrays [N, ...].

        Args:
            data: a recipe, or a `tf.data.Dataset` of global batches `x`, `(x, y)` or `(x, y, sample_weight)`; if the
                step has its own function to predict, what that takes. Or arrays, a PyDataset or a generator, as in
                `fit`.
            batch_size: of arrays; 32 by default.
            steps: batches to predict; all by default.
        """
        data = keras_data(self.strategy, data, batch_size=batch_size, steps=steps)
        passes, inputs = self._reads(data, "predict", steps=steps)
        of_all_workers(self.strategy, 0)  # a worker that is at another place of the program is named
        with explained(self.strategy):
            batches = inputs.batches(first_batch_check(passes.step, "predict"))
            parts = list(passes.calls.predictions(batches))
        # An output without rows counts as one; `joined` refuses it.
        require_examples(len(parts), sum(tf.nest.flatten(part)[0].shape[:1].num_elements() for part in parts))
        return tf.nest.map_structure(lambda *part: joined([p.numpy() for p in part]), *parts)

    @checks_arguments(StepError)
    @one_at_a_time
    def warm_up(
        self, data: Data, *, validation_data: Data | None = None, class_weight: Mapping[int, float] | None = None
    ) -> None:
        """Compile and run every function on batches of the real shape, and leave everything as it was.

        Afterwards weights, optimizer state, random generators and the position in the data are bit for bit what they
        were; the first real step then takes as long as any other. A `tf.data.Dataset` of your own is not read: zeros of
        its shapes stand in.

        Args:
            data: what `fit` will be given.
            validation_data: what `evaluate` will be given; `data` by default.
            class_weight: what `fit` will be given.
        """
        passes, training = self._reads(data, "train", class_weight, rehearses=True)
        step, calls, length = passes.step, passes.calls, passes.length
        variables_of(self.step, "warm_up could not put it back")
        with explained(self.strategy):
            evaluated = data if validation_data is None else validation_data
            testing = Input(self.strategy, evaluated, rehearses=True) if step.can("evaluate") else None
            with unchanged([]):
                step.prepare(training.element_spec)  # which may make variables
            with unchanged(step.variables):
                check = first_batch_check(step, begins=False)
                if check is not None and (batch := training.first()) is not None:
                    check(batch)
                for number, (batches, most) in enumerate(training.rehearsals(step.accumulate)):
                    for steps in length.probes() if number == 0 else (most,):
                        result = calls.call("train", batches, passes.zeros(), min(steps, most))
                        batches.position -= result.steps
                        length.learn(result.steps, result.seconds)
                if testing is not None:
                    step.prepare(testing.element_spec, "test")
                    for batches, _ in testing.rehearsals():
                        calls.call("test", batches, passes.zeros("test"), 1)
        self._warm = True

    @one_at_a_time
    def traced(self, data: Data) -> ConcreteFunction:
        """Trace the function that `fit` would call for whole batches, and do not run it; see `mk.checks.on_devices`."""
        passes, training = self._reads(data, "train", rehearses=True)
        assert not isinstance(passes.calls, RemoteCalls)  # under parameter servers the workers trace theirs
        passes.step.prepare(training.element_spec)
        batches, steps = next(training.rehearsals(passes.step.accumulate))
        return passes.calls.function("train", batches, steps)

    @checks_arguments(StepError)
    @one_at_a_time
    def restore(self, folder: str | os.PathLike[str]) -> Position:
        """Restore everything from the newest whole checkpoint in a folder; the next `fit` goes on from there.

        `mk.train.Checkpoints` calls this at the beginning of `fit`; call it yourself to evaluate or inspect.

        Args:
            folder: that of `mk.train.Checkpoints`.

        Returns:
            Epoch, batch, steps and history of the run.

        Raises:
            CheckpointError: there is no checkpoint, none is whole, or it is of another model; then nothing is changed.
            StepError: the model is not built, and no data was seen to build it from.
        """
        self._built()
        self._restored = restore_newest(folder, self.step)
        self.position = self._restored.position
        return self.position

    def _takes_each_step(self, callbacks: Sequence[KerasCallback] | None) -> bool:
        """Whether a callback of any worker wants calls of one step."""
        if self._steps_per_call != "auto":
            return False
        acting = some_act_on_batches(self.strategy, callbacks, tell=not self._told_of_hooks)
        self._told_of_hooks |= acting
        return acting and not is_parameter_server(self.strategy)
