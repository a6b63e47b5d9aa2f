"""Every row of the table is equal within rounding, and with the mechanism behind it switched off it is not.

The sample of places is the same every time: row i, counted from 0 in the order of the table, is trained under mirrored
with 2 + i % 3 replicas; and every other row at one of the other places of this process in turn: sharded slots, a
layout, central storage, one replica of each strategy, Keras's step with variables.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import table
import tensorflow as tf
from cases import CASES

from mirrorkit.errors import NonFiniteLossError
from mirrorkit.optim import functional
from mirrorkit.strategy import local_replica
from mirrorkit.train.first_batch import check
from mirrorkit.train.keras_model import layer_state
from mirrorkit.train.keras_model.layer_state import LayerState
from mirrorkit.train.reduce import sparse_gradient, transforms, update
from mirrorkit.train.step import functions, options, replicated_optimizer
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.devices import OneDevice, SeveralDevices
from mirrorkit.train.step.global_batch import HostBatch
from mirrorkit.train.step.keras_compile import CompiledModel
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals import totals

Patch = Callable[[pytest.MonkeyPatch], None]


def _computed(change: Callable[[Any, Any, int], Any]) -> Patch:
    """Change what each replica computes: `change(step, sums, replica)`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        compute = Supervised.sums

        def changed(step: Any, batch: Any, part: Any = 0, **options: Any) -> Any:
            replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
            return change(step, compute(step, batch, part, **options), replica)

        monkeypatch.setattr(Supervised, "sums", changed)

    return patch


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replace an attribute by what `make` makes of it; of a variant of a step, its file's name is the owner."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        of = importlib.import_module(f"mirrorkit.train.step.{owner}") if isinstance(owner, str) else owner
        monkeypatch.setattr(of, name, make(getattr(of, name)))

    return patch


def _after_functional_apply(change: Callable[..., Any]) -> Patch:
    def wrap(apply: Any) -> Any:
        return lambda optimizer, weights, slots, gradients, rate: change(
            optimizer, slots, *apply(optimizer, weights, slots, gradients, rate=rate)
        )

    return _replaced(replicated_optimizer, "functional_apply", wrap)


def _mean_of_means(step: Any, sums: Any, replica: int) -> Any:
    held, divisors = sums["totals"], {"gradients": totals.DIVISOR, "state": totals.EXAMPLES, "totals": totals.EXAMPLES}
    means = {
        name: tf.nest.map_structure(lambda value, by=held[by]: value / tf.maximum(by, 1e-6), sums[name])
        for name, by in divisors.items()
    }
    ones = [[totals.EXAMPLES], [totals.DIVISOR]]
    return {**sums, **means, "totals": tf.tensor_scatter_nd_update(means["totals"], ones, [1.0, 1.0])}


def _clipped_before(option: str) -> Patch:
    """Clip each replica's mean gradient, and nothing after the reduction."""
    bound = CASES[option].options[option]
    clip = transforms.Clip(bound, None) if option == "clip_norm" else transforms.Clip(None, bound)
    clip_now = transforms.Clip.update

    def clipped(step: Any, sums: Any, replica: int) -> Any:
        count = sums["totals"][totals.DIVISOR]
        gradients, _ = clip_now(clip, [g / count for g in sums["gradients"]], (), 0)
        return {**sums, "gradients": [g * count for g in gradients]}

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transforms.Clip, "update", lambda clip, gradients, state, step: (gradients, state))
        _computed(clipped)(monkeypatch)

    return patch


def _forgetting(call: Any) -> Any:
    return lambda held, gradients, values, step, joined: (call(held, gradients, values, step, joined)[0], list(values))


def _skipped_alone(step: Any, sums: Any, replica: int) -> Any:
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in sums["gradients"]])
    return {**sums, "gradients": [tf.where(finite, g, tf.zeros_like(g)) for g in sums["gradients"]]}


def _first_replicas_state(step: Any, sums: Any, replica: int) -> Any:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return {**sums, "state": [value * (replicas if replica == 0 else 0) for value in sums["state"]]}


def _first_replicas_metrics(step: Any, sums: Any, replica: int) -> Any:
    held, first = sums["totals"], totals.FIXED + 2  # behind the sum and the count of the loss
    return {**sums, "totals": tf.concat([held[:first], held[first:] * (1.0 if replica == 0 else 0.0)], 0)}


def _last_row_wins(gradient: Any, shape: Any) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.reshape(gradient.values, [-1, shape[-1]])
        return tf.tensor_scatter_nd_update(tf.zeros(shape), tf.reshape(gradient.indices, [-1, 1]), rows)
    return tf.ensure_shape(gradient, shape)


def _last_of_each(ids: tf.Tensor, values: tf.Tensor, size: int) -> tf.Tensor:
    return _last_row_wins(tf.IndexedSlices(values, ids), (size, values.shape[1]))


def _in_bfloat16(reduced: Any) -> Any:
    def reduce(sums: Any, **options: Any) -> Any:
        return reduced(tf.nest.map_structure(lambda v: tf.cast(tf.cast(v, tf.bfloat16), v.dtype), sums), **options)

    return reduce


def _of_first_device(reducing: Any) -> Any:
    def made(devices: Any, facts: Any) -> Any:
        reduce = reducing(devices, facts)

        def reduced(sums: Any) -> Any:
            names = tf.nest.flatten(devices.of_sums(facts(), local_replica(tf.distribute.get_strategy())))
            both = zip(tf.nest.flatten(reduce(sums)), tf.nest.flatten(sums), names, strict=True)
            return tf.nest.pack_sequence_as(sums, [whole if name == min(names) else own for whole, own, name in both])

        return reduced

    return made


def _run_every_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "unless_empty", lambda rows, full, **_: full())  # where the size is not known
    monkeypatch.setattr(functions, "has_no_rows", lambda batch: False)  # where it is


def _frozen_iterations(optimizer: Any, old: Any, weights: Any, slots: Any) -> Any:
    kept = [o if v is optimizer.iterations else n for v, o, n in zip(optimizer.variables, old, slots, strict=True)]
    return weights, kept


class _Off(NamedTuple):
    mechanism: str
    rows: tuple[str, ...]
    patch: Patch
    where: tuple[str, int] = ("mirrored", 2)


_LARGE_TABLES = tuple(row for row in CASES if CASES[row].large_table)
_OFF = [
    _Off(
        "the reduction",
        ("SGD", "several inputs and outputs", "transformer", "all at once"),
        _replaced(update, "all_reduce", lambda _: lambda sums, **options: sums),
    ),
    _Off(
        "slots are kept",
        ("momentum", "Adam", "AdamW", "Lion"),
        _after_functional_apply(lambda optimizer, old, weights, slots: (weights, old)),
    ),
    _Off("iterations advance", ("learning-rate schedule",), _after_functional_apply(_frozen_iterations)),
    _Off(
        "the host counts the steps of a call",
        ("learning-rate schedule", "Dropout"),
        _replaced(Clock, "at", lambda at: lambda clock, start, index: at(clock, start, tf.zeros_like(index))),
    ),
    _Off(
        "weight decay",
        ("weight decay",),
        _replaced(functional._between(), "_apply_weight_decay", lambda _: lambda optimizer, variables: None),
    ),
    _Off("clip_norm after the reduction", ("clip_norm",), _clipped_before("clip_norm")),
    _Off("clip_value after the reduction", ("clip_value",), _clipped_before("clip_value")),
    _Off("the state of a transform", ("transforms",), _replaced(transforms.Transforms, "__call__", _forgetting)),
    _Off(
        "the parts of an update are added up",
        ("accumulate",),
        _replaced(OneDevice, "added", lambda _: lambda devices, sums, more, facts: more),
    ),
    _Off(
        "averages",
        ("ema",),
        _replaced(Averages, "_mean", lambda _: staticmethod(lambda decay, average, value: value)),
    ),
    _Off(
        "all replicas skip together",
        ('loss_scale="dynamic", mixed_float16, overflows',),
        _computed(_skipped_alone),
    ),
    _Off("sums in float32", ("mixed_bfloat16",), _replaced(update, "all_reduce", _in_bfloat16)),
    _Off(
        "weights of examples",
        ("sample weights", "class weights"),
        _replaced(options.Options, "data", lambda data: lambda of, parts: data(of, parts[:2])),
    ),
    _Off(
        "model.losses count once",
        ("model.losses (L2)",),
        _replaced(CompiledModel, "losses", lambda of: property(lambda model: [2 * loss for loss in of.fget(model)])),
    ),
    _Off("rows of one word add up", ("Embedding",), _replaced(functions, "dense", lambda _: _last_row_wins)),
    _Off(
        "rows of one id add up where all replicas' rows arrive",
        _LARGE_TABLES,
        _replaced(sparse_gradient, "dense_of", lambda _: _last_of_each),
    ),
    _Off(
        "rows that no batch looks up are updated too",
        ("large table, momentum", "large table, Adam", "large table, Lion"),
        _replaced("tables", "leaves_rows_alone", lambda _: lambda optimizer, weight: True),
    ),
    _Off("metrics' states add up", ("AUC", "F1"), _computed(_first_replicas_metrics)),
    _Off(
        "sums, not means",
        ("partial batch", "empty share"),
        _computed(_mean_of_means),
    ),
    _Off(
        "a replica takes its own rows",
        ("records", "image_folder", "parquet", "source"),
        _replaced(HostBatch, "_cut", lambda cut: lambda batch, replica, replicas: cut(batch, 0, replicas)),
    ),
    _Off(
        "empty shares are not run",
        ("BatchNorm, empty share",),
        _run_every_share,
    ),
    _Off(
        "layer state is combined",
        ("BatchNorm", "CNN with BatchNorm"),
        _computed(_first_replicas_state),
    ),
    _Off(
        "synchronized layers are traced on the replicas",
        ("synchronized BatchNorm",),
        _replaced(layer_state, "layers_of", lambda _: lambda model: []),
    ),
    _Off(
        "copies of a batch count once",
        ("synchronized BatchNorm, empty share",),
        _replaced(
            functions,
            "weigh_copies",
            lambda weigh: lambda sums, is_all: sums | {"totals": weigh(sums, is_all)["totals"]},
        ),
    ),
    _Off(
        "sums of a replica's second device are reduced",
        ("momentum",),
        _replaced(SeveralDevices, "reducing", _of_first_device),
        ("layout", 2),
    ),
    _Off(
        "pieces of the weights come from their replicas",
        ("Adam",),
        _replaced("sharded_optimizer", "gather_rows", lambda _: lambda own, sizes: tf.tile(own, [sizes.shape[0]])),
        ("shard_optimizer", 3),
    ),
    _Off(
        "seeds of their own",
        ("Dropout", "augmentation layers"),
        _replaced(LayerState, "seeded", lambda _: lambda state, values, shard: list(values)),
    ),
]
_FAST = {
    ("SGD", "the reduction"),
    ("BatchNorm, empty share", "empty shares are not run"),
}
_PAIRS = [
    pytest.param(off, row, id=f"{row}-{off.mechanism}", marks=() if (row, off.mechanism) in _FAST else pytest.mark.slow)
    for off in _OFF
    for row in off.rows
]


_PLACES = [*table.HERE, *table.LARGE, *table.VARIABLES]
_OTHERS = [place for place in _PLACES[::-1] if place[0] != "mirrored" or place[1] == 1]


def _sample(row: str) -> list[tuple[str, int]]:
    """Where a row is trained; the rule is at the top."""
    i = list(CASES).index(row)
    return [("mirrored", 2 + i % 3), *([_OTHERS[i // 2 % len(_OTHERS)]] if i % 2 == 0 else [])]


@functools.cache
def _references(row: str) -> table.References:
    """What a row must come to; each is trained once for all tests of the row."""
    return table.References(CASES[row])


def test_the_sample_has_every_place() -> None:
    assert {place for row in CASES for place in _sample(row)} == {*_PLACES}


@pytest.mark.slow
@pytest.mark.parametrize("row", CASES)
def test_every_row_is_equal_within_rounding(row: str) -> None:
    pytest.importorskip(CASES[row].needs)
    found = dict(table.cells(CASES[row], _sample(row), table.train_here, _references(row)))
    red = {place: str(cell) for place, cell in found.items() if cell.is_red}
    assert not red, f"difference (control): {red}"


def test_every_row_has_a_mechanism_to_switch_off() -> None:
    assert {row for off in _OFF for row in off.rows} == CASES.keys()
    assert {(row, off.mechanism) for off in _OFF for row in off.rows} >= _FAST


@pytest.mark.parametrize("off", _OFF, ids=lambda off: off.mechanism)
def test_every_mechanism_is_where_it_is_switched_off(off: _Off, monkeypatch: pytest.MonkeyPatch) -> None:
    off.patch(monkeypatch)


@pytest.mark.parametrize(("off", "row"), _PAIRS)
def test_red(off: _Off, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(CASES[row].needs)
    off.patch(monkeypatch)
    monkeypatch.setattr(check, "compare_parts", lambda *args, **options: True)  # it would see some of them first
    try:
        ((_, cell),) = table.cells(CASES[row], [off.where], table.train_here, _references(row))
    except NonFiniteLossError:
        return
    assert cell.is_red, f"{row} stays within its bar without '{off.mechanism}': {cell}"
