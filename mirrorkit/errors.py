"""The errors that mirrorkit raises. Each message says what was asked, what was found, and what to do.

Every kind is a `MirrorkitError` and also the built-in error that fits it best, so `except ValueError` works too.
"""

from __future__ import annotations


class MirrorkitError(Exception):
    """Base class of all errors that mirrorkit raises itself."""


class BackendError(MirrorkitError, RuntimeError):
    """The installed or selected Keras cannot be used (too old, Keras 2, or a backend other than TensorFlow)."""


class DeviceError(MirrorkitError, RuntimeError):
    """A device was asked for that is not there, does not compute rightly, or can no longer be configured."""


class StrategyError(MirrorkitError, ValueError):
    """A strategy was asked for that is unknown or that these devices cannot give."""


class ClusterError(MirrorkitError, ValueError):
    """The cluster this process belongs to is described wrongly, or one of its tasks does not answer."""


class DataError(MirrorkitError, ValueError):
    """A data set is missing, damaged, or not what it says it is."""


class ModelError(MirrorkitError, ValueError):
    """A model was asked for that the registry does not know, or with arguments that do not fit it."""


class StepError(MirrorkitError, ValueError):
    """A step or a loop was put together wrongly: model, loss, metrics and data do not fit each other."""


class CheckpointError(MirrorkitError, RuntimeError):
    """A checkpoint cannot be written, cannot be read, or belongs to another model."""


class OutOfSyncError(MirrorkitError, RuntimeError):
    """Replicas that must hold the same values do not; `report` is the `mk.checks.SyncReport` that says which."""

    def __init__(self, message: str, *, report: object) -> None:
        super().__init__(message)
        self.report = report


class NonFiniteLossError(MirrorkitError, ArithmeticError):
    """The loss became NaN or infinite; the attributes say where it was first seen, all counted from 0.

    Attributes:
        step: the training step of the run.
        epoch: the epoch.
        batch: the global batch of that epoch; with `accumulate`, the first one of the update.
    """

    def __init__(self, message: str, *, step: int, epoch: int, batch: int) -> None:
        super().__init__(message)
        self.step = step
        self.epoch = epoch
        self.batch = batch
