"""Some rows of a batch, computed at once or in parts: as one replica computes them, or as several.

Parts draw for each row what all rows together draw for it, and gather from each other. In training, layers that are
documented to mix rows are at rest. So nothing that is known to depend on how a batch is cut makes a difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.first_batch.sampled_rows import take
from mirrorkit.train.keras_model.keras_operations import statistics_at_rest
from mirrorkit.train.keras_model.layer_state import is_seed, layers_of, training_argument
from mirrorkit.train.keras_model.row_draws import RowDraws, Shapes
from mirrorkit.train.step.supervised import Supervised

T = TypeVar("T")
_LONG = 100  # time steps, more of which take longer than a trace
InParts = Callable[..., list[Any]]  # of a function of rows and the sizes of parts: what it gives for each part


class Computed:
    """Computes with the model of a step, from the values that its variables have, for some rows.

    Args:
        step: a step that is prepared.
        rows: a nest of tensors [rows, ...].
        training: whether the model trains, so that layers which then mix rows are to be at rest.
    """

    def __init__(self, step: Supervised, rows: Nest, *, training: bool) -> None:
        model = step.trained
        self._step, self._rows, self._training = step, rows, training
        self.count: int = tf.nest.flatten(rows)[0].shape[0]
        self._longest = max(sum(tensor.shape[1:2]) for tensor in tf.nest.flatten(rows))  # sequence, where it is one
        self.values = step.values()
        self._shapes = {tuple(variable.shape) for variable in model.variables}
        seeds = [is_seed(variable) for variable in model.non_trainable_variables]
        self.other_seeds = [v + 1 if seed else v for v, seed in zip(self.values.state, seeds, strict=True)]
        self.all_draws_known = True  # whether each draw so far could be made by rows

    def __call__(
        self,
        compute: Callable[[list[tf.Tensor], list[tf.Tensor], InParts], Nest],
        state: Sequence[tf.Tensor] | None = None,
        *,
        eager: bool = False,
    ) -> Nest:
        """Return what `compute` makes of weights, layer state and an `InParts`, which it first asks for all rows.

        With many time steps, one operation after the other would take as long for each as for a whole layer, and of a
        placed model all weights would be copied to one device: these are traced, the first but where they are `eager`.
        """
        drawn: Shapes = []

        def function(weights: list[tf.Tensor], state: list[tf.Tensor], rows: Nest) -> Nest:
            def in_parts(of_part: Callable[[Nest], T], sizes: Sequence[int]) -> list[T]:
                return self._in_parts(of_part, rows, sizes, drawn)

            return compute(weights, state, in_parts)

        model, placed = self._step.trained, self._step.on_first
        given = list(self.values.weights), list(self.values.state if state is None else state), self._rows
        outside: list[tf.Tensor] = []  # seeds of draws that are made again where a gradient is taken
        with ambient.set(seeds=outside), at_rest(model) if self._training else contextlib.nullcontext():
            is_long = self._longest > _LONG and any(isinstance(one, keras.layers.RNN) for one in layers_of(model))
            if placed or (is_long and not eager):
                function = tf.function(placed(function) if placed else function, autograph=False)
            found = function(*given)
        self.all_draws_known &= not outside
        return found

    def _in_parts(self, of_part: Callable[[Nest], T], rows: Nest, sizes: Sequence[int], drawn: Shapes) -> list[T]:
        """Compute one part after the other; again for each call of `all_gather`, with what the calls before return."""
        known: list[Nest] = []
        while True:
            found: list[T] = []
            asked: list[Nest] = []
            for number, own in enumerate(sizes):
                first = sum(sizes[:number])
                calls = iter(known)

                def gather(rows: Nest, calls: Iterator[Nest] = calls, asked: list[Nest] = asked) -> Nest:
                    for whole in calls:
                        return whole
                    asked.append(rows)
                    raise _NotKnown

                draws = RowDraws(own, first, self.count, drawn, self._shapes)
                with contextlib.suppress(_NotKnown), ambient.set(gather=gather, draws=draws, seeds=draws.seeds):
                    found.append(of_part(take(rows, list(range(first, first + own)))))
                    self.all_draws_known &= draws.all_are_known
            if not asked:
                return found
            if found:
                raise StepError("The number of calls of mk.train.all_gather must not depend on the number of rows.")
            known.append(tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *asked))


class _NotKnown(BaseException):
    """What all parts gather is not known yet; no `Exception`, which Keras would catch and raise as another one."""


@contextlib.contextmanager
def in_float32(model: KerasModel) -> Iterator[None]:
    """Let layers of mixed precision compute in float32 within the block: in 16 bits rounding hides differences."""
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            policy = layer.dtype_policy
            is_mixed = layer.compute_dtype in ("float16", "bfloat16") and layer.variable_dtype == "float32"
            if is_mixed and policy.quantization_mode is None:
                stack.callback(setattr, layer, "dtype_policy", policy)
                layer.dtype_policy = "float32"
        yield


@contextlib.contextmanager
def at_rest(model: KerasModel) -> Iterator[None]:
    """Call Keras's layers that are documented to mix rows in training as outside of it."""
    layers = layers_of(model)
    mixing = [layer for layer in layers if isinstance(layer, (keras.layers.MixUp, keras.layers.CutMix))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(statistics_at_rest([x for x in layers if isinstance(x, keras.layers.BatchNormalization)]))
        for layer in mixing:
            call, in_rest = layer.call, training_argument(layer, False)

            def call_at_rest(*args: Any, call: Any = call, in_rest: Any = in_rest, **options: Any) -> Nest:
                return call(*args, **options | in_rest)

            vars(layer)["call"] = call_at_rest  # not by assignment, which Keras would track
            stack.callback(vars(layer).pop, "call")
        yield
