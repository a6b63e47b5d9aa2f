"""What is to blame where parts of a batch do not give what all its rows give: outputs, added losses, layer state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN
from mirrorkit.train.first_batch.rows import PARTS, Computed, InParts, rows_differ
from mirrorkit.train.first_batch.sampled_rows import ROWS, SEEN, take
from mirrorkit.train.first_batch.state import state_faults
from mirrorkit.train.keras_model.calling import call_model
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits
from mirrorkit.train.requirements.same_rows import told
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import native

_CALLS = 1e-4  # rounding of what models compute for batches of different sizes, in parts of a number's size


def culprits(step: Supervised, parts: Nest, *, training: bool) -> dict[str, list[str]]:
    """Return in sentences what differs, of `ROWS` rows that were taken apart, by the name that leaves it unchecked."""
    blamed = _Model(step, parts[0], training=training)
    return {
        "rows": _tried(blamed.rows()),
        "add_loss": _tried(blamed.added()),
        "state": _tried(blamed.state()) if training else [],
    }


def _tried(check: Iterable[str]) -> list[str]:
    try:
        return list(check)
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        return [f"Its check failed: {told(error)}"]


class _Model:
    """The calls of a step's model, for the rows of a batch."""

    def __init__(self, step: Supervised, x: Nest, *, training: bool) -> None:
        self._step, self._training, self._x = step, training, x
        self._seen = take(x, np.linspace(0, ROWS - 1, SEEN).astype(int))

    def _called(self, rows: Nest, sizes: Sequence[int]) -> Nest:
        """Return what the model gives: outputs, state, added losses; for all rows, and for parts of these sizes."""
        model, training = self._step.trained, self._training

        def called(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
            def of_part(x: Nest) -> Nest:
                return call_model(model, weights, state, x, training=training)

            (whole,) = in_parts(of_part, [tf.nest.flatten(rows)[0].shape[0]])
            return [whole, *in_parts(of_part, sizes)]

        return Computed(self._step, rows, training=training)(called)

    def rows(self) -> Iterator[str]:
        """Compare the outputs for each row."""
        outputs, *of_parts = (outputs for outputs, *_ in self._called(self._seen, PARTS))
        parts = [tf.nest.flatten(part) for part in of_parts]
        values = self._step.options.of_values
        share = SIXTEEN if has_sixteen_bits(self._step.model) else LARGEST
        for number, (name, output) in enumerate(self._named(outputs)):
            title = "The model's output" if name is None else f"The output {name!r}"
            if output is not None and output.shape[:1] == [1]:
                yield (
                    f"{title} has the shape {list(output.shape)} for {SEEN} rows of inputs; a loss needs a row for "
                    "each. Let layers work along other axes than the first."
                )
            elif output is None or not rows_differ(output, [part[number] for part in parts], share):
                continue
            elif self._step.is_whole:
                yield (
                    f"What loss_fn returns as {name!r} is not the same for parts of a batch that gather rows from each "
                    "other as for the whole batch. All that it uses of other examples, and how many there are, must "
                    "come from mk.train.all_gather, and it must return the values of its own rows."
                )
            elif values:
                yield (
                    f"What loss_fn returns as {name!r} for an example depends on the other examples of its batch, or "
                    "on how many there are. Each value must come from its own example alone: take means over other "
                    "axes than the first, do not divide by the number of rows, since a step takes the mean over the "
                    "global batch itself, and let the data give each example its pair or its negatives. A loss that is "
                    "over the whole batch gathers what it needs of the others with mk.train.all_gather, in "
                    "Step.from_loss(..., whole_batch=True)."
                )
            else:
                yield (
                    f"{title} for an example depends on the other examples of its batch, on how many there are, or on "
                    f"its place among them (training={self._training}): a layer uses all rows of its batch, of which a "
                    "replica has only its own, or draws with a constant seed, which each replica repeats. Let layers "
                    "work along other axes than the first, normalize by "
                    "keras.layers.BatchNormalization(synchronized=True), and draw from a keras.random.SeedGenerator."
                )

    def _named(self, outputs: Nest) -> list[tuple[str | None, tf.Tensor]]:
        """Return the outputs in flat order, with their names; one output has none."""
        flat = tf.nest.flatten(outputs)
        if isinstance(outputs, Mapping) and len(outputs) == len(flat):
            return list(zip(sorted(outputs), flat, strict=True))  # the order of `flatten`
        if len(flat) == 1:
            return [(None, flat[0])]
        known = getattr(self._step.trained, "output_names", None) or []
        names = known if len(known) == len(flat) else [f"output_{i}" for i in range(len(flat))]
        return list(zip(names, flat, strict=True))

    def added(self) -> Iterator[str]:
        """Compare what layers add to the loss, which must be a mean over the rows."""
        whole, *parts = (added for _, _, added in self._called(self._seen, PARTS))
        for i, value in enumerate(whole):
            total, values = _number(value), [_number(part[i]) for part in parts]
            mean = float(np.dot(PARTS, values)) / SEEN
            if abs(total - mean) > self._rounding * max(abs(total), *map(abs, values)):
                yield (
                    f"A layer adds {total:.6g} to the loss (add_loss or activity_regularizer) for {SEEN} rows, but the "
                    f"mean over parts of them is {mean:.6g}: {values[0]:.6g} for {PARTS[0]} rows, {values[1]:.6g} for "
                    f"{PARTS[1]}. Add a mean over the rows (keras.ops.mean) of what each row gives by itself. An "
                    "activity_regularizer returns the sum over the rows, by whose number Keras divides it."
                )

    def state(self) -> Iterator[str]:
        """Compare what layers remember."""

        def after(sizes: Sequence[int]) -> list[Sequence[tf.Tensor]]:
            whole, *parts = (state for _, state, _ in self._called(self._x, sizes))
            return parts if len(sizes) > 1 else [whole]

        def twice() -> list[Sequence[tf.Tensor]]:
            half = list(range(ROWS // 2))
            both, one, _ = (state for _, state, _ in self._called(take(self._x, half * 2), [ROWS // 2] * 2))
            return [both, one]

        state = [tf.convert_to_tensor(native(v)) for v in self._step.trained.non_trainable_variables]
        return state_faults(self._step.trained, state, after, twice, ROWS, self._rounding)

    @property
    def _rounding(self) -> float:
        return SIXTEEN if has_sixteen_bits(self._step.model) else _CALLS


def _number(tensor: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.cast(tensor, tf.float64)))
