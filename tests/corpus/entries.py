"""What an entry of the corpus is: one small net, as its owner has it in plain Keras, and ported to mirrorkit.

`Fit` is for what `compile` and `fit` express: both scripts are here, `in_keras` and `ported`. `Script` has two scripts
of its own. Each takes its data and returns what it trained.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras

sys.path.append(str(Path(__file__).resolve().parents[1] / "equivalence"))

from cases import EPOCHS, Case

BATCH = 16
TRAIN, TEST = 3 * BATCH + 7, 2 * BATCH + 5  # examples; the last batches hold 7 and 5, so that the shares are uneven
ONE, TWO, WORKERS = "one device", "2 replicas", "2 workers"
PLACES = (ONE, TWO, WORKERS)
Rows = tuple[Any, ...]  # x, (x, y) or (x, y, sample_weight): nests of arrays


class Trained(NamedTuple):
    """What a script came to: the models and optimizers as they ended, the logs, the predictions for the test rows."""

    models: Sequence[Any]
    optimizers: Sequence[Any]
    history: Mapping[str, Sequence[float]]
    predictions: Any = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table.

    Attributes:
        name: what the net is.
        kind: the table's section.
        data: makes the training and the test rows.
        reference: what the numbers are compared with, where it is not Keras as its owner has it, and why.
        refused: what the error says, where mirrorkit refuses to train this.
        refused_on: where it refuses; elsewhere it trains.
        per_shard: the result depends on how a batch is cut (BatchNorm, Dropout): several replicas are compared with one
            device that computes the same shards.
        draws: it draws random numbers; so even one device does not draw Keras's.
        without: parts of the names of variables whose true gradient is zero, so that rounding alone moves them.
        policy: Keras's dtype policy.
        large_tables: its Embeddings are trained as if they were large.
        with_variables: its step is no function of values, so that each replica runs it with variables of its own.
        open: what is not right yet, and why; such a row is bold, and no failure.
        orders: how many other orders of the examples make the control, where the net amplifies rounding.
    """

    name: str
    kind: str = ""
    data: Callable[[], tuple[Rows, Rows]]
    reference: str = ""
    refused: str = ""
    refused_on: Sequence[str] = PLACES
    per_shard: bool = False
    draws: bool = False
    without: Sequence[str] = ()
    policy: str = "float32"
    large_tables: bool = False
    with_variables: bool = False
    orders: int = 1
    open: str = ""

    def keras(self, train: Rows, test: Rows) -> Trained:
        """Train in plain Keras or TensorFlow."""
        raise NotImplementedError

    def port(self, strategy: tf.distribute.Strategy, train: Rows, test: Rows) -> Trained:
        """Train with mirrorkit."""
        raise NotImplementedError

    def scripts(self) -> tuple[str, str]:
        """The sources of both."""
        raise NotImplementedError

    @property
    def way(self) -> str:
        """What the port is made with."""
        source = self.scripts()[1]
        names = ("Step.from_loss", "Step.from_compiled", "mk.train.Update", "mk.train.Step(")
        return next(n for n in names if n in source).strip("(").removeprefix("mk.train.")

    @property
    def lines_changed(self) -> tuple[int, int]:
        """Lines that the port has and Keras's script has not, and the other way round; not counting indentation."""
        before, after = ([line.strip() for line in s.splitlines() if line.strip()] for s in self.scripts())
        marks = [line[0] for line in difflib.ndiff(before, after)]
        return marks.count("+"), marks.count("-")


@dataclass(frozen=True, kw_only=True)
class Fit(Entry):
    """`compile` and `fit`; the parts are called once for each script, in the strategy's scope."""

    model: Callable[[], Any]
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.1)
    loss: Callable[[], Any] = lambda: "mse"
    metrics: Callable[[], Any] = list
    compiled: Mapping[str, Any] = field(default_factory=dict)
    fitted: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[Any]] = list
    # what makes Keras the right reference, where docs/differences.md says that it is not:
    fitting: Callable[[Any], Any] = lambda optimizer: optimizer  # the optimizer

    def keras(self, train: Rows, test: Rows) -> Trained:
        return in_keras(dataclasses.replace(self, optimizer=lambda: self.fitting(self.optimizer())), train, test)

    def port(self, strategy: tf.distribute.Strategy, train: Rows, test: Rows) -> Trained:
        return ported(self, strategy, train, test)

    def scripts(self) -> tuple[str, str]:
        return _body(in_keras), _body(ported)

    def case(self) -> Case:
        """The same as a row of the equivalence table, whose reference can compute N shards."""
        train = recipe(self.data()[0])
        return Case(self.name, self.model, self.optimizer, lambda: train, self.loss, self.metrics, policy=self.policy,
                    per_shard=True)  # fmt: skip


def in_keras(e: Fit, train: Rows, test: Rows) -> Trained:
    """The script as its owner has it."""
    x, y, weight = [*train, None, None][:3]
    model = e.model()
    model.compile(e.optimizer(), loss=e.loss(), metrics=e.metrics(), jit_compile=False, **e.compiled)
    options = {"epochs": EPOCHS, "callbacks": e.callbacks(), "verbose": 0, **e.fitted}
    fitted = model.fit(x, y, BATCH, sample_weight=weight, shuffle=False, validation_data=(test[0], test[1]), **options)
    predictions = model.predict(test[0], BATCH, verbose=0)
    return Trained([model], [model.optimizer], fitted.history, predictions)


def ported(e: Fit, strategy: tf.distribute.Strategy, train: Rows, test: Rows) -> Trained:
    """The same, ported."""
    x, y, weight = [*train, None, None][:3]
    train_data = mk.data.batches(mk.data.arrays(x, y, sample_weight=weight), global_batch_size=BATCH)
    test_data = mk.data.batches(mk.data.arrays(test[0], test[1]), global_batch_size=BATCH)
    with strategy.scope():
        model = e.model()
        model.compile(e.optimizer(), loss=e.loss(), metrics=e.metrics(), jit_compile=False, **e.compiled)
    options = {"epochs": EPOCHS, "callbacks": e.callbacks(), "verbose": 0, **e.fitted}
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    fitted = loop.fit(train_data, validation_data=test_data, **options)
    predictions = loop.predict(test_data)
    return Trained([model], [model.optimizer], fitted.history, predictions)


@dataclass(frozen=True, kw_only=True)
class Script(Entry):
    """Two functions: `before(train, test)` without mirrorkit, and `after(strategy, train, test)`.

    `parts` are what else belongs to the scripts, such as a class with a `train_step`; what both use need not be listed.
    """

    before: Callable[[Rows, Rows], Trained]
    after: Callable[[Any, Rows, Rows], Trained]
    parts: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    by_shards: Callable[..., Trained] | None = None  # (train, test, shards, reordered), where it `draws`

    def keras(self, train: Rows, test: Rows) -> Trained:
        return self.before(train, test)

    def port(self, strategy: tf.distribute.Strategy, train: Rows, test: Rows) -> Trained:
        return self.after(strategy, train, test)

    def scripts(self) -> tuple[str, str]:
        before, after = self.parts
        sources = [*before, self.before], [*after, self.after]
        return tuple("".join(_body(part) for part in each) for each in sources)


def _body(part: Any) -> str:
    """The source of a function or class, without docstrings."""
    source = textwrap.dedent(inspect.getsource(part))
    return "".join(line for line in source.splitlines(True) if not line.strip().startswith(('"""', "#", "@")))


def batched(rows: Rows) -> tf.data.Dataset:
    """The rows as a dataset of batches, for training loops written by hand."""
    return tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)


def recipe(rows: Rows) -> mk.data.Batches:
    """The rows as mirrorkit's global batches."""
    x, y, weight = [*rows, None, None][:3]
    return mk.data.batches(mk.data.arrays(x, y, sample_weight=weight), global_batch_size=BATCH)


def split(make: Callable[[np.random.Generator, int], Rows]) -> Callable[[], tuple[Rows, Rows]]:
    """Training and test rows of one kind."""
    return lambda: (make(np.random.default_rng(1), TRAIN), make(np.random.default_rng(2), TEST))


Make = Callable[[], Any]  # makes a layer or a model, in the strategy's scope


def net(*layers: Make, shape: tuple[int, ...] = (4,), dtype: str | None = None) -> Make:
    """A Sequential; each layer is a function, so that every call makes new ones."""
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *(layer() for layer in layers)])


def dense(units: int, activation: str | None = None, **options: Any) -> Make:
    """A Dense layer, to be made later."""
    return lambda: keras.layers.Dense(units, activation, **options)


def each(*names: str) -> dict[str, Callable[[Rows], Any]]:
    """Logs that are means over the examples."""
    return dict.fromkeys(names, lambda rows: np.ones(len(tf.nest.flatten(rows)[0])))


def logits() -> Any:
    """The loss of class indices and logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
