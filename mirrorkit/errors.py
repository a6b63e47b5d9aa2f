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


class MirrorkitError(Exception):
    """Base class of all errors that mirrorkit raises itself."""

    if not TYPE_CHECKING:
        __init__ = Exception.__init__  # by this AutoGraph knows that a message makes another one, and keeps the kind


class ArgumentError(MirrorkitError, ValueError):
    """An argument or option has an invalid value, or two of them exclude each other."""


class BackendError(MirrorkitError, RuntimeError):
    """The installed or selected Keras cannot be used (too old, Keras 2, or a backend other than TensorFlow)."""


class DeviceError(MirrorkitError, RuntimeError):
    """A requested device does not exist, computes wrong results, or can no longer be configured."""


class StrategyError(ArgumentError):
    """The requested strategy is unknown, or these devices do not support it."""


class ClusterError(MirrorkitError, ValueError):
    """The description of the cluster is invalid, or one of its tasks does not answer."""


class DeviceArgumentError(ArgumentError, DeviceError):
    """An argument that says which devices to use cannot be read, or contradicts itself.

    It is a `DeviceError` too.
    """


class JobError(ArgumentError, ClusterError):
    """The requested job of several tasks cannot be started: no such script, no worker.

    It is a `ClusterError` too.
    """


class DataError(MirrorkitError, ValueError):
    """A data set is missing, damaged, or not what it says it is."""


class RecipeError(ArgumentError, DataError):
    """A recipe or a function of `mk.data` was given arguments that do not fit the set or each other.

    It is a `DataError` too.
    """


class ModelError(ArgumentError):
    """The requested model is not registered, or the arguments do not fit it."""


class StepError(ArgumentError):
    """A step or a loop was put together wrongly: model, loss, metrics and data do not fit each other."""


class CheckpointError(MirrorkitError, RuntimeError):
    """A checkpoint cannot be used: it is damaged, or belongs to another model or run."""


class FileError(MirrorkitError, OSError):
    """A file or folder cannot be written or read: no space left, no permission, or something else is in its place."""


class OutOfSyncError(MirrorkitError, RuntimeError):
    """Replicas that must hold the same values do not. `report`, a `mk.checks.SyncReport`, says which.

    `report` is None if a fit on several workers raised the error.
    """

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class NonFiniteLossError(MirrorkitError, ArithmeticError):
    """The loss, or a variable that the step changes, became NaN or infinite.

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
