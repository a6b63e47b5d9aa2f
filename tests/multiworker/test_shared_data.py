"""`mk.data.distribute` on real workers: shards are disjoint and complete, and uneven or empty ones change no result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow
EXAMPLES, BATCH, WORKERS = 49, 12, 3
EVERYTHING = list(range(EXAMPLES))
CASES = [
    *("data, arrays", "data, seven files", "data, one file", "off, arrays"),
    *("file, seven files", "file, four files", "auto, arrays", "auto, seven files", "auto, one file", "file, one file"),
]
TRAINED = CASES[:-1]
FILES = {"seven files": 7, "four files": 4, "one file": 1}


def split() -> mk.data.Split:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(EXAMPLES)[:, None], rng.normal(size=(EXAMPLES, 3))], 1)  # a number, and features
    return mk.data.arrays(x.astype("float32"), (x[:, 1] > 0).astype("int64"), num_classes=2)


def make_step(strategy: tf.distribute.Strategy) -> mk.train.Step:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Rescaling([0.0, 1, 1, 1]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    step.build(strategy)
    return step


def local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0].numpy()


def shared(strategy: tf.distribute.Strategy, data: Any, policy: str) -> dict[str, Any]:
    """This worker's rows of each step; what a training and an evaluation on the shares come to."""
    step = make_step(strategy)

    @tf.function
    def train_step(batch: Any) -> Any:
        return step.update(strategy, strategy.run(step.compute, args=(batch,)))

    @tf.function
    def test_step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step.test, args=(batch,)), axis=None)

    rows, totals = [], 0
    try:
        for batch in mk.data.distribute(data, strategy, autoshard=policy):
            rows.append(local(strategy, batch[0])[:, 0].astype(int).tolist())
            totals += test_step(batch)
            train_step(batch)
    except (mk.errors.MirrorkitError, tf.errors.OpError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    weights = [variable.numpy().tolist() for variable in step.model.trainable_variables]
    return {"rows": rows, "totals": totals.numpy().tolist(), "weights": weights}


def parts(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    """What this worker gets in each case."""
    own = folder / f"worker{mk.strategy.worker_index(strategy)}"  # as if each had a disk of its own
    data = {"arrays": mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)}
    for name, shards in FILES.items():
        mk.data.write_records(split(), own / name, num_files=shards)
        data[name] = mk.data.records(own / name, global_batch_size=BATCH)
    return {case: shared(strategy, data[case.partition(", ")[2]], case.partition(", ")[0]) for case in CASES}


@pytest.fixture(scope="module")
def found(on_workers: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each worker got."""
    return on_workers(parts, tmp_path_factory.mktemp("run"), workers=WORKERS)


def together(parts: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def rows(found: list[dict[str, Any]], case: str) -> list[list[list[int]]]:
    """By worker and step."""
    return [worker[case]["rows"] for worker in found]


@pytest.mark.parametrize("case", TRAINED)
def test_every_example_reaches_one_worker_once(found, case):
    seen = [sorted(i for step in worker for i in step) for worker in rows(found, case)]
    if case.startswith("off"):
        assert seen == [EVERYTHING] * len(found)
    else:
        assert sorted(together(seen)) == EVERYTHING


@pytest.mark.parametrize("case", TRAINED)
def test_all_workers_take_the_same_number_of_steps(found, case):
    assert len({len(worker) for worker in rows(found, case)}) == 1


def test_there_are_empty_shares_among_the_cases(found):
    # the last batch has one example
    assert any([] in worker for worker in rows(found, "auto, arrays"))
    assert any([] in worker for worker in rows(found, "auto, seven files"))


@pytest.mark.parametrize("case", ["data, arrays", "auto, arrays"])
def test_a_global_batch_is_that_of_one_process(found, case):
    recipe = mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)
    steps = [together(parts) for parts in zip(*rows(found, case), strict=True)]
    assert steps == [x[:, 0].numpy().astype(int).tolist() for x, _ in recipe.dataset()]


@pytest.mark.parametrize("files", ["seven files", "one file"])
def test_a_global_batch_of_files_does_not_depend_on_who_reads_what(found, files):
    policies = ["data", "auto", *(["file"] if files == "seven files" else [])]
    steps = [[together(parts) for parts in zip(*rows(found, f"{p}, {files}"), strict=True)] for p in policies]
    assert all(one == steps[0] for one in steps[1:])


@pytest.mark.parametrize("case", TRAINED)
def test_the_result_is_that_of_one_device_on_the_same_rows(found, case, strategy_of):
    whole = split()
    steps = [together(parts) for parts in zip(*rows(found, case), strict=True)]
    batches = [(whole.images[step], whole.labels[step]) for step in steps]
    spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int64))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    expected = shared(strategy_of("one_device", 1), dataset, "data")
    assert expected["rows"] == steps
    for worker in found:
        assert worker[case]["totals"] == found[0][case]["totals"]
        assert worker[case]["weights"] == found[0][case]["weights"]
    np.testing.assert_allclose(found[0][case]["totals"], expected["totals"], rtol=1e-6)
    for one, other in zip(found[0][case]["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_fewer_files_than_workers_are_refused_by_all(found):
    says = f"RecipeError: autoshard='file' was asked for, but the set has 1 files for {len(found)} workers"
    for worker in found:
        assert says in str(worker["file, one file"])
