"""The errors that mirrorkit raises. Each message says what was asked, what was found, and what to do.

Every kind is a `MirrorkitError` and also the built-in error that fits it best, so `except ValueError` works too. The
kind says where to look:

| at fault | kinds |
|---|---|
| an argument | `ArgumentError`, and as special cases `StrategyError`, `ModelError`, `StepError`, `RecipeError` |
| | `DeviceArgumentError`, `JobError` |
| the environment | `BackendError`, `DeviceError`, `ClusterError` |
| the data | `DataError` |
| a checkpoint's content | `CheckpointError` |
| a disk or a file's permissions | `FileError` |
| the training itself | `OutOfSyncError`, `NonFiniteLossError` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorkit.printing import shown


class MirrorkitError(Exception):
    """Base class of all errors that mirrorkit raises itself.

    ```python
    try:
        mk.models.create("resnet21")
    except mk.errors.MirrorkitError as error:
        print(type(error).__name__, isinstance(error, ValueError))  # ModelError True
    ```
    """

    if not TYPE_CHECKING:
        __init__ = Exception.__init__  # by this AutoGraph knows that a message makes another one, and keeps the kind

    def __str__(self) -> str:
        """Return the message, without the secrets of addresses in it."""
        return shown(super().__str__())

    def __repr__(self) -> str:
        """Return the message with the kind; see `__str__`."""
        return f"{type(self).__name__}({str(self)!r})"


class ArgumentError(MirrorkitError, ValueError):
    """An argument or option has an invalid value, or two of them exclude each other.

    ```python
    try:
        mk.reproducible.enable(seed=-1)
    except mk.errors.ArgumentError as error:
        print(error)  # seed must be a whole number from 0 to 4294967295, found -1.
    ```
    """


class BackendError(MirrorkitError, RuntimeError):
    """The installed or selected Keras cannot be used (too old, Keras 2, or a backend other than TensorFlow).

    ```python
    result = mk.testing.run_in_fresh_process("import mirrorkit.models", env={"KERAS_BACKEND": "jax"}, check=False)
    print(result.stderr.splitlines()[-1].partition(" but ")[2])   # KERAS_BACKEND='jax'. Set ...
    ```
    """


class DeviceError(MirrorkitError, RuntimeError):
    """A requested device does not exist, computes wrong results, or can no longer be configured.

    ```python
    try:
        mk.devices.verify(require="gpu:16")
    except mk.errors.DeviceError as error:
        print(str(error).partition(",")[0])  # At least 16 GPU required
    ```
    """


class StrategyError(ArgumentError):
    """The requested strategy is unknown, or these devices do not support it.

    ```python
    try:
        mk.strategy.create("mirror")
    except mk.errors.StrategyError as error:
        print(str(error).partition(".")[0])  # Unknown strategy kind 'mirror'
    ```
    """


class ClusterError(MirrorkitError, ValueError):
    """The description of the cluster is invalid, or one of its tasks does not answer.

    ```python
    try:
        mk.cluster.detect({"TF_CONFIG": "worker"})
    except mk.errors.ClusterError as error:
        print(str(error).partition(" (")[0])  # TF_CONFIG is set but cannot be read
    ```
    """


class DeviceArgumentError(ArgumentError, DeviceError):
    """An argument that says which devices to use cannot be read, or contradicts itself.

    ```python
    try:
        mk.devices.resolve("cpus")
    except mk.errors.DeviceArgumentError as error:
        print(str(error).partition(".")[0])  # devices='cpus' is not understood
    ```

    It is a `DeviceError` too.
    """


class JobError(ArgumentError, ClusterError):
    """The requested job of several tasks cannot be started: no such script, no worker.

    ```python
    try:
        mk.launch.launch("missing.py", workers=2)
    except mk.errors.JobError as error:
        print(error)  # There is no script 'missing.py'. Name a Python file.
    ```

    It is a `ClusterError` too.
    """


class DataError(MirrorkitError, ValueError):
    """A data set is missing, damaged, or not what it says it is.

    ```python
    try:
        mk.data.arrays(images[:10], labels[:9])
    except mk.errors.DataError as error:
        print(str(error).partition(";")[0])  # images holds 10 examples and labels holds 9
    ```
    """


class RecipeError(ArgumentError, DataError):
    """A recipe or a function of `mk.data` was given arguments that do not fit the set or each other.

    ```python
    try:
        mk.data.batches(digits.train, global_batch_size=0)
    except mk.errors.RecipeError as error:
        print(error)  # global_batch_size must be a whole number from 1 on, found 0.
    ```

    It is a `DataError` too.
    """


class ModelError(ArgumentError):
    """The requested model is not registered, or the arguments do not fit it.

    ```python
    try:
        mk.models.create("mlp", num_classes=0)
    except mk.errors.ModelError as error:
        print(error)  # num_classes of the model 'mlp' must be a whole number from 1 on, found 0.
    ```
    """


class StepError(ArgumentError):
    """A step or a loop was put together wrongly: model, loss, metrics and data do not fit each other.

    ```python
    try:
        mk.train.Step(model, optimizer, loss=loss, accumulate=0)
    except mk.errors.StepError as error:
        print(error)  # accumulate must be a whole number from 1 on, found 0.
    ```
    """


class CheckpointError(MirrorkitError, RuntimeError):
    """A checkpoint cannot be used: it is damaged, or belongs to another model or run.

    ```python
    try:
        loop.restore("runs/first")
    except mk.errors.CheckpointError as error:
        print(str(error).partition(" in ")[0])  # There is no checkpoint
    ```
    """


class FileError(MirrorkitError, OSError):
    """A file or folder cannot be written or read: no space left, no permission, or something else is in its place.

    ```python
    open("runs", "w").close()   # a file in the place of the folder
    try:
        mk.train.export(model, "runs/digits.keras")
    except mk.errors.FileError as error:
        print(str(error).partition(":")[0])  # Nothing could be written to 'runs/digits.keras'
    ```
    """


class OutOfSyncError(MirrorkitError, RuntimeError):
    """Replicas that must hold the same values do not. `report`, a `mk.checks.SyncReport`, says which.

    ```python
    copies = strategy.experimental_local_results(model.layers[-1].bias.value)
    copies[1].assign_add(tf.ones(10))   # of replica 1
    try:
        loop.fit(train, verbose=0, callbacks=[mk.checks.InSync(every=1)])
    except mk.errors.OutOfSyncError as error:
        print(error.report.differing)  # ('logits/bias',)
    ```

    `report` is None if a fit on several workers raised the error.
    """

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class NonFiniteLossError(MirrorkitError, ArithmeticError):
    """The loss, or a variable that the step changes, became NaN or infinite.

    ```python
    weights = np.ones(256)
    weights[100] = np.nan
    broken = mk.data.batches(mk.data.arrays(images, labels, sample_weight=weights), global_batch_size=64)
    try:
        loop.fit(broken, verbose=0)
    except mk.errors.NonFiniteLossError as error:
        print(error.epoch, error.batch, error.variable)  # 0 1 None
    ```

    The other attributes say where it was first seen, all counted from 0.

    Attributes:
        step: the training step of the run.
        epoch: the epoch.
        batch: the global batch of that epoch; with `accumulate`, the first one of the update.
        variable: the path of the variable, such as "dense/kernel", if the loss stayed finite; None if it is the loss.
    """

    def __init__(self, message: str, *, step: int, epoch: int, batch: int, variable: str | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.epoch = epoch
        self.batch = batch
        self.variable = variable
