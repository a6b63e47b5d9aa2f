"""Check that a model's outputs for an example, or a loss function's values, come from that example alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.rounding import COARSE, LARGEST, SIXTEEN, differ, numbers
from mirrorkit.train.first_batch.sampled_rows import SEEN, take
from mirrorkit.train.keras_model.layer_state import is_seed, layers_of, training_argument
from mirrorkit.train.reduce.gathering import gathering

T = TypeVar("T")

# (x, training, state): outputs, state, added losses
Forward = Callable[..., tuple[Nest, list[tf.Tensor], list[tf.Tensor]]]


def caller(
    model: KerasModel,
    compute: Callable[..., Nest],
    weights: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    x: Nest,
    *,
    placed: Callable[[Callable[..., Nest]], Callable[..., Nest]] | None,
    at_once: bool = False,
) -> Callable[..., Nest]:
    """Return a function of (x, training, state) that computes with the model, for any number of rows.

    Args:
        model: what `compute` calls.
        compute: a function of weights, state and x, and of `training` by name.
        weights: values of the trainable variables.
        state: values of the non-trainable variables, where none are given.
        x: rows like those to come.
        placed: as `OneDevice.on_first`, of a placed model.
        at_once: never traced.
    """

    def call(x: Nest, training: bool = False, state: Sequence[tf.Tensor] = state) -> Nest:
        return compute(weights, state, x, training=training)

    if at_once or not (placed or any(isinstance(layer, keras.layers.RNN) for layer in layers_of(model))):
        return call

    # One operation after the other, each time step would take as long as a whole layer, and all weights of a placed
    # model would be copied to one device.
    @functools.cache
    def traced(training: bool) -> tf.types.experimental.PolymorphicFunction:
        def with_training(weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], x: Nest) -> Nest:
            return compute(weights, state, x, training=training)

        signature = [
            *([tf.TensorSpec.from_tensor(value) for value in values] for values in (weights, state)),
            tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), x),
        ]
        function = placed(with_training) if placed else with_training
        return tf.function(function, input_signature=signature, autograph=False)

    def call_traced(x: Nest, training: bool = False, state: Sequence[tf.Tensor] = state) -> Nest:
        return traced(training)(list(weights), list(state), x)

    return call_traced


@contextlib.contextmanager
def known_mixers_at_rest(model: KerasModel) -> Iterator[None]:
    """Call Keras's layers that are documented to mix rows in training as outside of it."""
    kinds = (keras.layers.BatchNormalization, keras.layers.MixUp, keras.layers.CutMix)
    layers = [layer for layer in layers_of(model) if isinstance(layer, kinds)]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            call, at_rest = layer.call, training_argument(layer, False)

            def call_at_rest(*args: Any, call: Any = call, at_rest: Any = at_rest, **options: Any) -> Nest:
                return call(*args, **options | at_rest)

            vars(layer)["call"] = call_at_rest  # not by assignment, which Keras would track
            stack.callback(vars(layer).pop, "call")
        yield


def of_rows(
    call: Forward, names: Sequence[str | None], with_loss: Collection[int], seen: Nest, y_pred: Nest
) -> Iterator[str]:
    """Compare outputs for rows with the outputs for the same rows, in the same places, beside others.

    Of the outputs `with_loss`, given by their numbers, one row for all would be stretched over the targets.
    """
    outputs = tf.nest.flatten(y_pred)
    titles = [_title(name) for name in names]
    for number in with_loss:
        if outputs[number].shape[:1] == [1]:
            yield (
                f"{titles[number]} has the shape {list(outputs[number].shape)} for {SEEN} rows of inputs; a loss "
                "needs a row for each. Let layers work along other axes than the first."
            )
    for number in _mixed(call, seen, outputs):
        yield (
            f"{titles[number]} for an example depends on the other examples of its batch (training=False): a layer "
            "mixes the rows. Let it work along other axes than the first."
        )


def of_rows_in_training(call: Forward, names: Sequence[str | None], seen: Nest, *, is_random: bool) -> Iterator[str]:
    """Compare outputs in training as `of_rows` does outside of it, and with those for fewer rows.

    `call` leaves out what is known to mix rows. What `is_random` draws other numbers for another number of rows.
    """
    outputs = tf.nest.flatten(call(seen)[0])
    for number in _mixed(call, seen, outputs, of_fewer=not is_random):
        yield (
            f"{_title(names[number])} for an example depends on the other examples of its batch, or on how many there "
            "are (training=True): a layer uses all rows of its batch, of which a replica has only its own. Let it work "
            "along other axes than the first, or normalize by keras.layers.BatchNormalization(synchronized=True)."
        )


def of_places(
    call: Forward, names: Sequence[str | None], others: Sequence[list[tf.Tensor]], seen: Nest, *, training: bool
) -> Iterator[str]:
    """Compare outputs for rows with the outputs for the same rows in other places: a share begins with place 0.

    With generators of random numbers, of which the `others` have other seeds, the place decides what a row draws.
    """
    places = [2, 0, 1]
    there = take(seen, places)
    for mode in (False, True)[: 1 + training]:

        def outputs(rows: Nest, *state: list[tf.Tensor], mode: bool = mode) -> list[np.ndarray]:
            return numbers(tf.nest.flatten(call(rows, mode, *state)[0]))

        first = outputs(seen)
        suspects = [number for number, one in enumerate(first) if one.shape[:1] == (SEEN,)]
        # With few numbers drawn, one seed's may happen to be another's; of something fixed, all seeds tell the same.
        for state in [(), (), *((other,) for other in others)]:
            if not suspects:
                break
            here, moved = outputs(seen, *state), outputs(there, *state)
            for number in list(suspects):
                rounding = SIXTEEN * np.max(np.abs(first[number]), initial=0.0)
                drawn = differ(first[number], here[number], rounding)
                if drawn or not differ(here[number][places], moved[number], rounding):
                    suspects.remove(number)
        for number in suspects:
            yield (
                f"{_title(names[number])} for an example depends on its place in the batch (training={mode}): a layer "
                "draws numbers with a constant seed, which each replica repeats, or mixes the rows, or numbers them. "
                "Draw from a keras.random.SeedGenerator; let layers work along other axes than the first."
            )
            return


def _title(name: str | None) -> str:
    return "The model's output" if name is None else f"The output {name!r}"


def _mixed(call: Forward, seen: Nest, outputs: Sequence[tf.Tensor], *, of_fewer: bool = False) -> Iterator[int]:
    """Yield the numbers of the outputs whose rows depend on the other rows; `of_fewer`, or on how many there are."""
    # Which rows to compare, of which rows, and where they are then.
    ways = [([1], [1, 1, 1], [1]), ([0, 2], [0, 0, 2], [0, 2]), ([0, 2], [0, 2], [0, 1])][: 2 + of_fewer]
    again = [numbers(tf.nest.flatten(call(take(seen, rows))[0])) for _, rows, _ in ways]
    for number, one in enumerate(outputs):
        if one is None or one.shape[:1] != [SEEN] or not one.dtype.is_floating:
            continue
        (whole,) = numbers([one])
        rounding = (LARGEST if one.dtype.size >= 4 else SIXTEEN) * np.max(np.abs(whole), initial=0.0)
        pairs = [(whole[kept], other[number][at]) for (kept, _, at), other in zip(ways, again, strict=True)]
        if not any(differ(before, beside, rounding) for before, beside in pairs):
            continue
        if differ(whole, numbers(tf.nest.flatten(call(seen)[0]))[number], rounding):
            continue  # the same rows give something else again: random numbers without a seed, which tracing refuses
        yield number


def of_values(
    call: Forward, names: Sequence[str], others: Sequence[list[tf.Tensor]], seen: Nest, y_pred: Nest
) -> Iterator[str]:
    """Compare what a loss function returns for rows with what it returns beside other rows, and beside fewer."""
    outputs = tf.nest.flatten(y_pred)
    mixed = set(_mixed(call, seen, outputs))
    fewer = [(rows, numbers(tf.nest.flatten(call(take(seen, rows))[0]))) for rows in ([1], [0, 2])]
    noises = _noises(call, others, seen, numbers(outputs))
    for number, (name, whole) in enumerate(zip(names, numbers(outputs), strict=True)):
        # Of a division by the number of rows the largest of three values changes by half at least; kernels for other
        # sizes round otherwise, and where numbers are drawn, others are for fewer rows.
        rounding = max(COARSE * np.max(np.abs(whole), initial=0.0), 2 * noises[number])
        if number in mixed:
            yield (
                f"What loss_fn returns as {name!r} for an example depends on the other examples of its batch. Each "
                "value must come from its own example alone: take means over other axes than the first, and let the "
                "data give each example its pair or its negatives. A loss that is over the whole batch gathers what it "
                "needs of the others with mk.train.all_gather, in Step.from_loss(..., whole_batch=True)."
            )
        elif any(differ(whole[rows], values[number], rounding) for rows, values in fewer):
            yield (
                f"What loss_fn returns as {name!r} for an example depends on how many examples there are. A step takes "
                "the mean over the global batch itself: do not divide by the number of rows."
            )


def of_gathered_values(
    call: Forward, names: Sequence[str], others: Sequence[list[tf.Tensor]], seen: Nest, y_pred: Nest, share: float
) -> Iterator[str]:
    """Compare what a loss function over the whole batch returns with what parts return that gather from each other.

    `share` is what rounding may be of a number's size.
    """
    wholes = numbers(tf.nest.flatten(y_pred))
    noises = _noises(call, others, seen, wholes)
    of_parts = in_parts(lambda rows: call(take(seen, rows))[0], [[0], list(range(1, SEEN))])
    parts = [numbers(tf.nest.flatten(outputs)) for outputs in of_parts]
    for number, (name, whole) in enumerate(zip(names, wholes, strict=True)):
        rounding = max(share * np.max(np.abs(whole), initial=0.0), 2 * noises[number])
        if differ(whole, np.concatenate([part[number] for part in parts]), rounding):
            yield (
                f"What loss_fn returns as {name!r} is not the same for parts of a batch that gather rows from each "
                "other as for the whole batch. All that it uses of other examples, and how many there are, must come "
                "from mk.train.all_gather, and it must return the values of its own rows."
            )


def _noises(
    call: Forward, others: Sequence[list[tf.Tensor]], seen: Nest, wholes: Sequence[np.ndarray]
) -> list[np.floating | float]:
    """Return by how much each output differs where other random numbers are drawn."""
    drawn = [numbers(tf.nest.flatten(call(seen, False, other)[0])) for other in others[:2]]
    return [
        max((np.max(np.abs(values[number] - whole)) for values in drawn), default=0.0)
        for number, whole in enumerate(wholes)
    ]


class _NotKnown(BaseException):
    """What all parts gather is not known yet; no `Exception`, which Keras would catch and raise as another one."""


def in_parts(compute: Callable[[T], Nest], parts: Sequence[T]) -> list[Nest]:
    """Compute each of the parts as if it were on a replica, with `all_gather` returning the rows of all parts.

    They are computed one after the other, and again for each call of `all_gather`, with what the calls before return.
    """
    known: list[Nest] = []
    while True:
        found: list[Nest] = []
        asked: list[Nest] = []
        for part in parts:
            calls = iter(known)

            def gather(rows: Nest, calls: Iterator[Nest] = calls, asked: list[Nest] = asked) -> Nest:
                for whole in calls:
                    return whole
                asked.append(rows)
                raise _NotKnown

            with gathering(gather):
                try:
                    found.append(compute(part))
                except _NotKnown:
                    continue
        if not asked:
            return found
        if found:
            raise StepError("mk.train.all_gather must be called as often for any number of rows.")
        known.append(tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), *asked))


def other_seeds(model: KerasModel, state: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    """Return the state with other seeds, several times; nothing where it has no seeds."""
    seeds = [is_seed(variable) for variable in model.non_trainable_variables]
    others = [[value + n if seed else value for value, seed in zip(state, seeds, strict=True)] for n in range(1, 9)]
    return others if any(seeds) else []
