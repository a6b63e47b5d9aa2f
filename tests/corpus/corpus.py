"""The corpus, one cell at a time: what a script came to, and how far it is from what Keras alone comes to."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import nets_dense
import nets_hub
import nets_options
import nets_own_steps
import nets_pictures
import nets_refused
import nets_sequences
import nets_tables
import numpy as np
import tensorflow as tf
from entries import BATCH, ONE, PLACES, TWO, WORKERS, Entry, Fit, Rows, Script, Trained

sys.path.append(str(Path(__file__).resolve().parents[1] / "equivalence"))

import plain
from cells import Outcome, bar, difference, policy, small_tables
from on_workers import disagreeing

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import MirrorkitError

KINDS = {
    "dense nets": nets_dense,
    "pictures": nets_pictures,
    "sequences": nets_sequences,
    "tables, several inputs and outputs": nets_tables,
    "options of layers and training": nets_options,
    "KerasHub": nets_hub,
    "custom training steps": nets_own_steps,
    "refused": nets_refused,
}
ENTRIES = {
    entry.name: dataclasses.replace(entry, kind=kind) for kind, module in KINDS.items() for entry in module.ENTRIES
}
Found = Outcome | str  # what was trained, or what the refusal says


class Cell(NamedTuple):
    """An entry in one place: how far it is from the reference, the control, or the refusal."""

    difference: float = 0.0
    control: float = 0.0
    refusal: str = ""
    wrong: str = ""  # what else is wrong: not refused though it should be, or not in the words expected

    @property
    def is_red(self) -> bool:
        """Whether this is neither equal within rounding nor the refusal that was expected."""
        return bool(self.wrong) or not self.difference <= bar(self.control)

    def __str__(self) -> str:
        """The difference and the control in parentheses, or "refused"."""
        number = "" if self.wrong and not self.control else f"{self.difference:.1e} ({self.control:.1e})"
        text = f"{'refused' if self.refusal else number} {self.wrong}".strip().replace("|", "/")
        return f"**{text}**" if self.is_red else text


def strategy_for(place: str) -> tf.distribute.Strategy:
    """A strategy of this process."""
    return mk.strategy.create("mirrored", devices="cpu:2") if place == TWO else mk.strategy.create("one_device")


def run(entry: Entry, strategy: tf.distribute.Strategy) -> Found:
    """Train the port; an error becomes what it says, and so does another way than that of the entry."""
    ways = _Ways()
    try:
        with ways.noted(), small_tables() if entry.large_tables else contextlib.nullcontext():
            found = _outcome(entry, lambda rows: entry.port(strategy, *rows), entry.data(), strategy)
        return found if bool(ways.told) == entry.with_variables else f"its step runs another way: {ways.told}"
    except MirrorkitError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}, which is not mirrorkit's: {error}"


class _Ways(logging.Handler):
    """Notes why steps run with variables of each replica."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is about a way."""
        if "with variables of its own" in record.getMessage():
            self.told.append(record.getMessage())

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Listen within the block."""
        logger = logging.getLogger("mirrorkit")
        level = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(self)


class References:
    """What an entry must come to, and how far it comes from that in another order; each trained once."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._made: dict[int, tuple[Outcome, float]] = {}  # by the number of shards

    def cell(self, place: str, found: Found) -> Cell:
        """Compare what was found in a place."""
        entry = self.entry
        expected = entry.refused if place in entry.refused_on else ""
        if isinstance(found, str):
            as_expected = expected and expected in found
            return Cell(refusal=found, wrong="" if as_expected else "in other words")
        if expected:
            return Cell(wrong="trains, and should be refused")
        try:
            cell = self._compared(place, found)
        except AssertionError as error:  # other logs or variables
            return Cell(wrong=f"other names: {error}"[:300])
        own = (
            found
            if place == WORKERS
            else {n: v for n, v in found.items() if n.startswith(("weights", "state", "slots"))}
        )
        different = disagreeing(own)
        return cell._replace(wrong=f"copies differ in {different[0]}" if different else "")

    def _compared(self, place: str, found: Outcome) -> Cell:
        entry = self.entry
        shards = 2 if (entry.per_shard or entry.draws) and place != ONE else 1
        if shards == 1 and not entry.draws:
            expected, control = self._made.get(1) or self._of_keras()
            self._made[1] = expected, control
            return Cell(difference(found, expected), control)
        expected, control = self._made.get(shards) or self._of_shards(shards)
        self._made[shards] = expected, control
        if isinstance(entry, Script):
            return Cell(difference({name: found[name] for name in expected}, expected), control)
        expected = {n: v for n, v in expected.items() if n in found or not (entry.without and n.startswith("state"))}
        trained = {name: value for name, value in found.items() if name in expected}
        assert expected.keys() == trained.keys(), sorted(expected.keys() ^ trained.keys())
        ends, again, others = _evaluated(entry, found)
        control = max(control, *(difference(other, again) for other in others))
        return Cell(max(difference(trained, expected), difference(ends, again)), control)

    def _of_keras(self) -> tuple[Outcome, float]:
        entry = self.entry
        train, test = entry.data()
        expected = _outcome(entry, lambda rows: entry.keras(*rows), (train, test))
        orders = [(_in_other_order(train, seed), test) for seed in range(entry.orders)]
        others = [_outcome(entry, lambda rows: entry.keras(*rows), rows) for rows in orders]
        return expected, max(difference(other, expected) for other in others)

    def _of_shards(self, shards: int) -> tuple[Outcome, float]:
        entry, rows = self.entry, self.entry.data()
        if isinstance(entry, Script):
            expected = _outcome(entry, lambda rows: entry.by_shards(*rows, shards, False), rows)
            return expected, difference(
                _outcome(entry, lambda rows: entry.by_shards(*rows, shards, True), rows), expected
            )
        case = entry.case()
        expected = plain.train(case, shards)
        others = [plain.train(case, shards, reordered=True)]
        if entry.policy != "float32":
            train, test = rows
            others.append(plain.train(dataclasses.replace(entry, data=lambda: (_moved(train), test)).case(), shards))
        return expected, max(difference(other, expected) for other in others)


def cells(entry: Entry, found: dict[str, Found]) -> dict[str, Cell]:
    """The cells of an entry, from what was found in each place."""
    references = References(entry)
    return {place: references.cell(place, value) for place, value in found.items()}


def _outcome(
    entry: Entry, train: Callable[[tuple[Rows, Rows]], Trained], rows: tuple[Rows, Rows], strategy: Any = None
) -> Outcome:
    """Everything that a script changed, its logs and predictions, by name; values stacked from all replicas' copies."""
    with policy(entry.policy):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        done = train(rows)

    def read(kind: str, variables: Any) -> Outcome:
        found = {}
        for i, variable in enumerate(variables):
            if any(part in variable.path for part in entry.without):
                continue
            copies = strategy.experimental_local_results(variable.value) if strategy else [variable.value]
            values = np.stack([copy.numpy() for copy in copies])
            found[f"{kind}/{i}"] = values if strategy else values[0]
        return found

    values = read("weights", [v for model in done.models for v in model.trainable_variables])
    values |= read("state", [v for model in done.models for v in model.non_trainable_variables])
    values |= read("slots", [v for optimizer in done.optimizers for v in optimizer.variables])
    values |= {f"logs/{name}": np.float64(value) for name, value in done.history.items()}
    leaves = tf.nest.flatten(done.predictions)
    return values | {f"predictions/{i}": np.float64(value) for i, value in enumerate(leaves)}


def _moved(rows: Rows) -> Rows:
    """The rows with inputs moved by less than what 16 bits round away: where they are rounded differs by machine."""
    rng = np.random.default_rng(0)

    def moved(part: Any) -> Any:
        return (part * (1 + 2.0**-9 * rng.uniform(-1, 1, part.shape))).astype(part.dtype)

    return (tf.nest.map_structure(moved, rows[0]), *rows[1:])


def _in_other_order(rows: Rows, seed: int) -> Rows:
    """The rows of each batch permuted: the same sums in another order."""
    count, rng = len(tf.nest.flatten(rows)[0]), np.random.default_rng(seed)
    starts = range(0, count, BATCH)
    places = np.concatenate([first + rng.permutation(min(BATCH, count - first)) for first in starts])
    return tf.nest.map_structure(lambda part: part[places], rows)


def _evaluated(entry: Fit, found: Outcome) -> tuple[Outcome, Outcome, list[Outcome]]:
    """Validation and predictions at the end; Keras's own for the weights that were found; and those in other ways."""
    _, test = entry.data()
    with policy(entry.policy):
        model = entry.model()
        for kind, variables in (("weights", model.trainable_variables), ("state", model.non_trainable_variables)):
            for i, variable in enumerate(variables):
                if f"{kind}/{i}" in found:
                    variable.assign(found[f"{kind}/{i}"].reshape(-1, *variable.shape)[0])
        model.compile(loss=entry.loss(), metrics=entry.metrics(), jit_compile=False)

        def evaluated(batch: int, test: Rows = test) -> Outcome:
            logs = model.evaluate(*test, batch_size=batch, verbose=0, return_dict=True)
            predictions = tf.nest.flatten(model.predict(test[0], batch_size=batch, verbose=0))
            values = {f"logs/val_{name}": np.float64(value) for name, value in logs.items()}
            return values | {f"predictions/{i}": np.float64(value) for i, value in enumerate(predictions)}

        again, others = evaluated(BATCH), [evaluated(BATCH // 2)]
        if entry.policy != "float32":
            others.append(evaluated(BATCH, _moved(test)))
    return {n: found[n][..., -1] if n.startswith("logs") else found[n] for n in again}, again, others


def here(entry: Entry, places: Sequence[str] = (ONE, TWO)) -> dict[str, Found]:
    """Train an entry's port in this process."""
    return {place: run(entry, strategy_for(place)) for place in places if place != WORKERS}


__all__ = ["ENTRIES", "KINDS", "PLACES", "Cell", "Found", "References", "cells", "here", "run", "strategy_for"]
