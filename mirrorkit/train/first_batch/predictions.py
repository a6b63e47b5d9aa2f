"""Check that what is predicted for a batch is what is predicted for its parts, before the first batch.

Each replica predicts its rows, and the outputs are put behind each other. A layer that looks at all rows of its batch,
or one that returns anything but a row for each, would give something else than on one replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN, differ
from mirrorkit.train.first_batch.rows import caller, in_parts, other_seeds
from mirrorkit.train.first_batch.sampled_rows import SEEN, take
from mirrorkit.train.keras_model.calling import with_values
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import unchanged

_log = logging.getLogger("mirrorkit")


def check_predictions(step: Supervised, batch: Nest) -> None:
    """Refuse predictions for a global batch that depend on how it is cut."""
    model, values = step.trained, step.values()

    def predict(weights: list[tf.Tensor], state: list[tf.Tensor], rows: Nest, *, training: bool) -> Nest:
        with with_values(model, weights, state):
            return step.outputs(rows)

    call = caller(model, predict, values.weights, values.state, batch, placed=step.on_first)
    with unchanged([]):  # a layer may draw from Python's or NumPy's generator
        outside_replica(lambda: _compare(call, model, values.state, batch))


def _compare(call: Callable[..., Nest], model: KerasModel, state: Sequence[tf.Tensor], batch: Nest) -> None:
    size = tf.nest.flatten(batch)[0].shape[0]
    if not size:
        return
    seen = take(batch, np.linspace(0, size - 1, SEEN).astype(int))
    try:
        (outputs,) = in_parts(call, [seen])
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        _log.warning(
            "Whether predictions for a batch are those for its parts could not be checked: the model does not take %d "
            "rows (%s: %s).",
            *(SEEN, type(error).__name__, error),
        )
        return
    named = keras.tree.flatten_with_path(outputs)
    for path, output in named:
        if not tf.is_tensor(output) or output.shape.rank == 0:
            found = f"the shape {output.shape}" if tf.is_tensor(output) else repr(output)
            raise StepError(
                f"{_title(path)} for {SEEN} rows is {found}. Every output needs a row for each row of the batch: "
                "return tensors [rows, ...], or leave it out."
            )
    share = SIXTEEN if has_sixteen_bits(model) else LARGEST
    for number in _that_differ(call, [output for _, output in named], other_seeds(model, state), seen, share):
        raise StepError(
            f"{_title(named[number][0])} for {SEEN} rows of the first batch is not what parts of them give: replicas, "
            "which predict their own rows, would not give what one gives. A layer looks at the other rows of its batch "
            "(BatchNormalization called with training=True, a mean over the first axis), draws with a constant seed, "
            "or returns anything but a row for each. Let layers work along other axes than the first, and draw from a "
            "keras.random.SeedGenerator; or predict under a strategy of one replica. (If you know that it is right, "
            "write Step(..., unchecked=('rows',)).)"
        )


def _that_differ(
    call: Callable[..., Nest], outputs: Sequence[tf.Tensor], others: Sequence[list[tf.Tensor]], seen: Nest, share: float
) -> Iterator[int]:
    """Yield the numbers of the outputs that parts do not give, whatever the seed.

    `share` is what rounding may be of a number's size.
    """

    def predicted(rows: Sequence[Nest], state: Sequence[list[tf.Tensor]]) -> Iterator[list[np.ndarray]]:
        for found in in_parts(lambda part: call(part, False, *state), rows):
            yield [np.asarray(output) for output in tf.nest.flatten(found)]

    first = [np.asarray(output) for output in outputs]
    suspects = list(range(len(first)))
    # With few numbers drawn, one seed's may happen to be another's; of something fixed, all seeds tell the same.
    for state in [(), (), *((other,) for other in others)]:
        if not suspects:
            return
        (whole,) = predicted([seen], state)
        parts = [np.concatenate(of_parts) for of_parts in zip(*predicted(_in_two(seen), state), strict=True)]
        suspects = [
            number
            for number in suspects
            if not _differ(first[number], whole[number], share) and _differ(whole[number], parts[number], share)
        ]
    yield from suspects


def _in_two(seen: Nest) -> list[Nest]:
    return [take(seen, [0]), take(seen, list(range(1, SEEN)))]


def _differ(one: np.ndarray, other: np.ndarray, share: float) -> bool:
    if one.shape != other.shape:
        return True
    if tf.as_dtype(one.dtype).is_floating:
        one, other = one.astype(np.float64), other.astype(np.float64)
        return differ(one, other, share * np.max(np.abs(one), initial=0.0))
    return share < SIXTEEN and bool(np.any(one != other))  # of numbers in 16 bits the largest may be another's


def _title(path: Sequence[object]) -> str:
    return "What the model predicts" + f" as {'/'.join(map(str, path))!r}" * bool(path)
