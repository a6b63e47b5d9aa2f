"""Check that what is predicted for a batch is what is predicted for its parts, before the first batch.

Each replica predicts its rows, and the outputs are put behind each other. A layer that looks at all rows of its batch,
or one that returns anything but a row for each, would give something else than on one replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN
from mirrorkit.train.first_batch.rows import PARTS, Computed, InParts, rows_differ
from mirrorkit.train.first_batch.sampled_rows import SEEN, take
from mirrorkit.train.first_batch.shares import cannot_run
from mirrorkit.train.keras_model.calling import with_values
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.requirements.data import check_batched, check_tensors
from mirrorkit.train.requirements.same_rows import ANY_ROWS
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import unchanged


def check_predictions(step: Supervised, batch: Nest) -> None:
    """Refuse predictions for a global batch that depend on how it is cut."""
    check_tensors(batch)
    check_batched(step.trained, step.unpack(batch).x)
    if tf.nest.flatten(batch)[0].shape[0]:
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            outside_replica(lambda: _compare(step, batch))


def _compare(step: Supervised, batch: Nest) -> None:
    size = tf.nest.flatten(batch)[0].shape[0]
    seen = take(batch, np.linspace(0, size - 1, SEEN).astype(int))
    computed = Computed(step, seen, training=False)

    def predicted(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts, *cuts: list[int]) -> list[Nest]:
        def of_part(rows: Nest) -> Nest:
            with with_values(step.trained, weights, state):
                return step.outputs(rows)

        return [outputs for sizes in ([SEEN], *cuts) for outputs in in_parts(of_part, sizes)]

    def in_two(*given: Any) -> list[Nest]:
        return predicted(*given, PARTS)

    try:
        (whole,) = computed(predicted)
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        raise cannot_run("The model's predict", SEEN, error, ANY_ROWS) from error
    named = keras.tree.flatten_with_path(whole)
    for path, output in named:
        if not tf.is_tensor(output) or output.shape.rank == 0:
            found = f"the shape {output.shape}" if tf.is_tensor(output) else repr(output)
            raise StepError(
                f"{_title(path)} for {SEEN} rows is {found}. Every output needs a row for each row of the batch: "
                "return tensors [rows, ...], or leave it out."
            )
    share = SIXTEEN if has_sixteen_bits(step.trained) else LARGEST
    again, *parts = (keras.tree.flatten(outputs) for outputs in computed(in_two))
    (other,) = computed(predicted, computed.other_seeds) if not computed.all_draws_known else (whole,)
    for (path, one), same, drawn, *of_parts in zip(named, again, keras.tree.flatten(other), *parts, strict=True):
        # What differs without being cut, or with other seeds where draws are not known by row, is no proof.
        if rows_differ(one, [same], share) or rows_differ(one, [drawn], share) or not rows_differ(one, of_parts, share):
            continue
        raise StepError(
            f"{_title(path)} for {SEEN} rows of the first batch is not what parts of them give: replicas, "
            "which predict their own rows, would not give what one gives. A layer looks at the other rows of its batch "
            "(BatchNormalization called with training=True, a mean over the first axis), draws with a constant seed, "
            "or returns anything but a row for each. Let layers work along other axes than the first, and draw from a "
            "keras.random.SeedGenerator; or predict under a strategy of one replica. (If you know that it is right, "
            "write Step(..., unchecked=('rows',)).)"
        )


def _title(path: Sequence[object]) -> str:
    return "What the model predicts" + f" as {'/'.join(map(str, path))!r}" * bool(path)
