"""The errors of a loop's calls: what TensorFlow says of lost tasks, damaged shards and data, in words that help."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from mirrorkit.cluster import unreachable, with_addresses
from mirrorkit.errors import ClusterError, MirrorkitError, StepError
from mirrorkit.strategy import ENDED_BY_OTHERS, is_parameter_server, name_lost_workers, task_addresses
from mirrorkit.train.calls.data_errors import explain
from mirrorkit.train.input.epoch import COMPONENT, EpochIterator, other_size
from mirrorkit.train.requirements.data import ANY_ROWS, told

_NO_BATCH = "The data gave no batch. Check its path, filters and drop_remainder."

# TensorFlow's own words; tests/train make each of these errors. XLA refuses an operation that it does not know, a size
# that it must know beforehand, something else than variables and tensors.
_REFUSED_BY_XLA = ("unsupported operations", "compile-time constant", "xla_launch_util", "fixed tensor list size")
_ENDED = "optional does not have a value"
_OTHER_SIZE = re.compile(
    rf"Shape of tensor \S+ \[(\d+).*?\] is not compatible with expected shape \[(\d+).*?{COMPONENT}(\d+)", re.DOTALL
)
_GO_ON = "Start all tasks again; a run with mk.train.Checkpoints goes on from its newest checkpoint."


def require_examples(batches: int, examples: int) -> None:
    """Refuse a whole pass over data that has no example: its loss of 0.0 would be the best one."""
    if batches == 0:
        raise StepError(_NO_BATCH)
    if examples == 0:
        raise StepError("All batches of the data are empty. Check its path and filters, and what the dataset batches.")


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the outputs of all batches as one array [N, ...]."""
    if not parts[0].shape:
        raise StepError(
            f"An output is one number for a batch, {parts[0]}. Every output needs a row for each row of the batch: "
            "return tensors [rows, ...], or leave it out."
        )
    shapes = dict.fromkeys(part.shape[1:] for part in parts)
    if len(shapes) > 1:
        first, second, *_ = ([None, *shape] for shape in shapes)
        raise StepError(
            f"The outputs have the shape {first} for some batches and {second} for others, so they are not one array. "
            "Pad the data to one length, or predict batch by batch: loop.predict(data.skip(i).take(1))."
        )
    return np.concatenate(parts)


@contextmanager
def explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turn TensorFlow's errors about data, or about a task that has exited, into one that names it."""
    try:
        with explained_data():
            yield
    except ENDED_BY_OTHERS as error:
        if not is_parameter_server(strategy):
            name_lost_workers(strategy, error)
            raise
        require_servers(strategy, error)
        if isinstance(error, tf.errors.InternalError | tf.errors.CancelledError):  # what a worker's own work may raise
            raise
        raise ClusterError(f"The connection to a task was lost: {str(error).splitlines()[0]} {_GO_ON}") from error


def require_servers(strategy: tf.distribute.Strategy, cause: BaseException | None = None) -> None:
    """Raise a `ClusterError` that names the parameter servers that do not answer, if there are any."""
    servers = task_addresses(strategy, "ps")
    gone = unreachable(servers)
    if gone and cause is None:  # perhaps only too busy to answer
        gone = unreachable({task: servers[task] for task in gone})
    if gone:
        raise ClusterError(
            f"{with_addresses(servers, gone)} does not answer any more, and the variables it held are lost. {_GO_ON}"
        ) from cause


@contextmanager
def explained_data(place: Callable[[bool], str] = lambda _: "") -> Iterator[None]:
    """Turn TensorFlow's errors about what the data raised or holds into one of a few lines; see `explain`."""
    try:
        yield
    except tf.errors.OpError as error:
        found = explain(error, place)
        if found is None:
            raise
        raise found from None  # TensorFlow's own words are a hundred lines


@contextmanager
def explained_call(data: EpochIterator, place: Callable[[bool], str]) -> Iterator[None]:
    """Turn TensorFlow's errors about data, or about what XLA cannot compile, into one that helps."""
    try:
        with explained_data(place):
            yield
    except (tf.errors.InvalidArgumentError, tf.errors.InternalError, tf.errors.UnimplementedError) as error:
        if _ENDED in error.message:
            raise StepError(
                f"The data claims to hold {data.steps} batches, but ended before. Fix its cardinality "
                "(tf.data.experimental.assert_cardinality), and start over: the last step is half done."
            ) from error
        if found := _OTHER_SIZE.search(error.message):
            rows, wanted, number = found.groups()
            at = f" in {place(True)} (counted from 0)"
            raise StepError(other_size(data.element_spec, int(number), rows, wanted, at)) from error
        said = [line for line in error.message.splitlines() if any(sign in line for sign in _REFUSED_BY_XLA)]
        if not said:
            raise
        raise StepError(
            f"XLA cannot compile this loop's calls: {said[0].strip()} Leave that operation out of the model and of "
            "the data's map, give a loop maximum_iterations, or give Step jit_compile=False."
        ) from error


@contextmanager
def explained_trace(sizes: Sequence[int | None] | None) -> Iterator[None]:
    """Say for which sizes of batches no call can be made, where one of others could; None: there was none."""
    try:
        yield
    except Exception as error:  # whatever a user's code may raise
        if sizes is None or isinstance(error, MirrorkitError):
            raise
        raise StepError(
            f"A batch of {sizes[-1] or 'any number of'} examples cannot be computed, as those before could: "
            f"{told(error)} {ANY_ROWS}"
        ) from error
