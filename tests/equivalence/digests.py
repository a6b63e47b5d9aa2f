"""Digests of what a hundred trainings come to: whoever changes the code without a change of results compares them.

Run: python tests/equivalence/digests.py FILE [--compare BEFORE] [--only NAME ...]

Trains every row of the equivalence table on two replicas and on two workers, some of them on other strategies, and
other kinds of data, steps and runs. FILE gets a digest of each training's weights, slots, layer state and history. With
BEFORE, written by the same command at another commit on the same machine, it prints what differs; the exit code is then
1. Bits are those of a processor and of a version of TensorFlow: no two machines need to agree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))

import numpy as np
import tensorflow as tf
from cases import BATCH, CASES, PARTIAL
from cells import Outcome
from corpus import ENTRIES, run as run_entry
from on_workers import train_on_workers
from table import train_here

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
EVERYWHERE = ("all at once", "synchronized BatchNorm, empty share")
ALONE = ("SGD", "Dropout", 'loss_scale="dynamic", mixed_float16, overflows', "several inputs and outputs")
LARGE = ("Adam", "Lion", "clip_norm", "transformer", "all at once")
OF_THE_CORPUS = [  # custom steps, and models that are not built
    *(entry.name for entry in ENTRIES.values() if entry.kind == "custom training steps"),
    *(name for name in ENTRIES if name.startswith("unbuilt")),
]
REPLICAS = 3

rng = np.random.default_rng(0)
X = rng.normal(size=(PARTIAL, 4)).astype("float32")
Y = np.argmax(X[:, :3] + 0.5 * rng.normal(size=(PARTIAL, 3)), 1)
PICTURES = rng.integers(0, 255, (PARTIAL, 6, 6, 1)).astype("uint8")


def of_the_table() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield rows of the equivalence table, by name and place."""
    places = [(name, "mirrored", 2) for name in CASES]
    places += [(name, "one_device", 1) for name in (*EVERYWHERE, *ALONE)]
    places += [(name, "mirrored", 4) for name in EVERYWHERE]
    places += [(name, "central_storage", n) for name in (*EVERYWHERE, *ALONE) for n in (1, 3)]
    places += [(name, "layout", 2) for name in LARGE]
    places += [(name, "shard_optimizer", REPLICAS) for name in LARGE]
    for name, kind, replicas in places:
        yield f"{name}, {kind} {replicas}", lambda name=name, place=(kind, replicas): train_here(CASES[name], *place)


def _strategy(kind: str = "mirrored", replicas: int = REPLICAS) -> tf.distribute.Strategy:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return mk.strategy.create(kind, devices=f"cpu:{replicas}")


def _outcome(loop: mk.train.Loop, report: mk.train.Report, **more: Any) -> Outcome:
    values = {f"variables/{i}": np.asarray(variable) for i, variable in enumerate(loop.step.variables)}
    values |= {f"logs/{name}": np.asarray(value) for name, value in report.history.items()}
    return values | {name: np.asarray(value) for name, value in more.items()}


def _net(shape: tuple[int, ...] = (4,)) -> Any:
    first = [] if len(shape) == 1 else [L.Rescaling(1 / 255), L.Flatten()]
    return keras.Sequential([keras.Input(shape), *first, L.Dense(8, "tanh"), L.Dropout(0.2), L.Dense(3)])


def _classifier(strategy: tf.distribute.Strategy, shape: tuple[int, ...] = (4,), **options: Any) -> mk.train.Loop:
    with strategy.scope():
        model, optimizer = _net(shape), keras.optimizers.Adam(0.02)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], **options))


def _recipe(**options: Any) -> mk.data.Batches:
    return mk.data.batches(mk.data.arrays(X, Y), global_batch_size=BATCH, shuffle=True, seed=1, **options)


def _fitted(data: Any, shape: tuple[int, ...] = (4,), *, kind: str = "mirrored", **options: Any) -> Outcome:
    loop = _classifier(_strategy(kind, 1 if kind == "one_device" else REPLICAS), shape)
    return _outcome(loop, loop.fit(data, epochs=2, verbose=0, **options))


def resident() -> Outcome:
    split = mk.data.arrays(PICTURES, Y)
    augment = [mk.data.augment.flip(), mk.data.augment.pad_and_crop(1)]
    return _fitted(mk.data.resident(split, global_batch_size=BATCH, shuffle=True, augment=augment), (6, 6, 1))


def augmented() -> Outcome:
    augment = [mk.data.augment.flip(), mk.data.augment.pad_and_crop(1), mk.data.augment.cutout(2)]
    split = mk.data.arrays(PICTURES, Y)
    return _fitted(mk.data.batches(split, global_batch_size=BATCH, shuffle=True, augment=augment), (6, 6, 1))


def mapped() -> Outcome:
    return _fitted(_recipe(map=lambda x, y: (2 * x, y)), validation_data=_recipe(), validation_freq=2)


def dataset() -> Outcome:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(PARTIAL, seed=3).batch(BATCH)
    return _fitted(data, validation_data=data.take(2))


def own_function() -> Outcome:
    def make(shard: int, num_shards: int, epoch: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(PARTIAL, seed=epoch).batch(BATCH, drop_remainder=True)

    return _fitted(mk.data.from_function(make, global_batch_size=BATCH, steps_per_epoch=4))


def callbacks() -> Outcome:
    class Rates(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 / (1 + batch)

    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0)
    return _fitted(_recipe(), callbacks=[Rates(), plateau])


def compiled_loop() -> Outcome:
    strategy = _strategy("one_device", 1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), L.Dense(8, "tanh"), L.Dense(3)])
        optimizer = keras.optimizers.Adam(0.02)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = mk.data.resident(mk.data.arrays(X, Y), global_batch_size=BATCH, shuffle=True, drop_remainder=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, jit_compile=True))
    return _outcome(loop, loop.fit(data, epochs=2, verbose=0))


def constrained() -> Outcome:
    """One weight has a constraint, and weights beside it are joined in the update."""
    strategy = _strategy()
    with strategy.scope():
        first = L.Dense(8, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.3))
        model = keras.Sequential([keras.Input((4,)), first, *(L.Dense(8, "tanh") for _ in range(4)), L.Dense(3)])
        optimizer = keras.optimizers.Adam(0.02)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))
    return _outcome(loop, loop.fit(_recipe(), epochs=2, verbose=0))


def evaluated_and_predicted() -> Outcome:
    loop = _classifier(_strategy())
    report = loop.fit(_recipe(), epochs=1, verbose=0)
    plain = mk.data.batches(mk.data.arrays(X, Y), global_batch_size=BATCH)
    return _outcome(loop, report, predicted=loop.predict(plain), **loop.evaluate(plain))


def warm() -> Outcome:
    loop = _classifier(_strategy())
    loop.warm_up(_recipe())
    return _outcome(loop, loop.fit(_recipe(), epochs=2, verbose=0))


class _Stop(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
    """Leaves a fit in the middle, as a signal does."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch >= 2:
            raise KeyboardInterrupt


def resumed(*, placed: bool = False) -> Outcome:
    """Leave a training within its first epoch, and go on with another loop."""
    with tempfile.TemporaryDirectory() as folder:
        for number in (1, 2):
            loop = _classifier(_strategy(), accumulate=2, ema=0.9, shard_optimizer=placed)
            stop = [_Stop()] if number == 1 else []
            try:
                report = loop.fit(
                    _recipe(), epochs=3, verbose=0, callbacks=[mk.train.Checkpoints(folder, every=2), *stop]
                )
            except KeyboardInterrupt:
                continue
        return _outcome(loop, report)


def of_the_corpus(name: str) -> Outcome:
    found = run_entry(ENTRIES[name], _strategy())
    assert not isinstance(found, str), found
    return found


OTHERS: list[Callable[[], Outcome]] = [
    *(augmented, mapped, resident, own_function),
    *(dataset, callbacks, compiled_loop, constrained),
    *(evaluated_and_predicted, warm, resumed),
]


def runs() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield every training by its name."""
    yield from of_the_table()
    yield from ((function.__name__.replace("_", " "), function) for function in OTHERS)
    yield "resumed, shard_optimizer", lambda: resumed(placed=True)
    yield from ((f"corpus: {name}", lambda name=name: of_the_corpus(name)) for name in OF_THE_CORPUS)


def digest(outcome: Outcome) -> str:
    """Return a digest of names, shapes, dtypes and bits."""
    found = hashlib.sha256()
    for name in sorted(outcome):
        value = np.asarray(outcome[name])
        found.update(f"{name} {value.shape} {value.dtype}".encode() + value.tobytes())
    return found.hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", type=Path, help="what the same command wrote at another commit")
    parser.add_argument("--only", nargs="+", help="parts of names")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="A global batch of")
    mk.devices.split_cpu(4)
    found = {}

    def wanted(name: str) -> bool:
        return not options.only or any(part in name for part in options.only)

    for name, run in runs():
        if wanted(name):
            found[name] = digest(run())
            print(f"{found[name]} {name}", flush=True)
    if names := [name for name in CASES if wanted(f"{name}, multi_worker 2")]:
        for name, outcome in train_on_workers(names, 2).items():
            found[f"{name}, multi_worker 2"] = digest(outcome)
            print(f"{found[f'{name}, multi_worker 2']} {name}, multi_worker 2", flush=True)
    options.file.write_text(json.dumps(found, indent=1) + "\n")
    if options.compare is None:
        return 0
    before = json.loads(options.compare.read_text())
    both = [name for name in found if name in before]
    other = [name for name in both if before[name] != found[name]]
    print(f"{len(both)} trainings in both, {len(other)} differ{': ' * bool(other)}{'; '.join(other)}")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
