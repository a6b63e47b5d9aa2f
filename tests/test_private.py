"""What happens where Keras or TensorFlow no longer has a name that mirrorkit uses."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit.errors import BackendError
from mirrorkit.optim import StandIn, treats_numbers_alike, twin_for
from mirrorkit.testing import run_in_fresh_process

TRAINING = """
    import inspect, json, warnings
    import numpy as np, keras
    import mirrorkit as mk
    from mirrorkit import private

    def rename(key):
        module, name = private._place(key, {})
        source = inspect.getsource(module).replace(name, f"renamed_{name}")
        exec(compile(source, module.__file__, "exec"), vars(module))
        delattr(module, name)

    def trained():
        keras.utils.set_random_seed(0)
        strategy = mk.strategy.create("mirrored", devices="cpu:2")
        x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
        y = (x.sum(1) > 0).astype("int64")
        with strategy.scope():
            model = keras.Sequential([
                keras.Input((4,)), keras.layers.Dense(4), keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(2, activation="softmax"),
            ])
            optimizer = keras.optimizers.SGD(0.1)
        step = mk.train.Step(model, optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=8, seed=0)
        return mk.train.Loop(strategy, step).fit(data, epochs=2, verbose=0).history
"""


@pytest.fixture(autouse=True)
def _said_anew() -> Iterator[None]:
    private.tell_missing.cache_clear()
    yield
    private.tell_missing.cache_clear()


def test_the_installed_versions_have_every_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD()
        model.compile("sgd", "mse")
        private.check(model=model, optimizer=optimizer, compiled=model)
        roots = ("keras", "tensorflow", "model", "optimizer", "compiled")
        keys = [key for key, row in private._ROWS.items() if row.owner.split(".")[0] in roots]
        assert len(keys) > 50
        objects = {"model": model, "optimizer": optimizer, "compiled": model}
        assert not [key for key in keys if private._place(key, objects) is None]


@pytest.fixture(scope="module")
def found() -> list[Any]:
    """The history of all names, that without two improvements and what was said then; what is said without a need."""
    code = """
    whole = trained()
    rename("nn._compute_moments_sync")
    rename("numpy.signbit")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = trained()
    rename("loss.scale_loss_for_distribution")
    try:
        trained()
    except mk.errors.BackendError as error:
        said = [str(one.message) for one in caught if "Results are the same" in str(one.message)]
        print(json.dumps([whole, history, said, str(error)]))
    """
    return run_in_fresh_process(TRAINING + code).json()


@pytest.mark.slow  # a process of its own, which trains
def test_an_improvement_that_is_gone_is_left_off_with_one_warning(found: list[Any]) -> None:
    whole, without, said, _ = found
    assert len(said) == 2
    assert re.search(r"have no .*\.signbit, so steps with Embedding or an accuracy wait", said[0])
    assert re.match(r"Keras 3\S+ and TensorFlow 2\S+ have no .*\._compute_moments_sync, so synchronized", said[1])
    for name, values in whole.items():
        assert without[name] == pytest.approx(values, rel=1e-5)


@pytest.mark.slow
def test_a_need_that_is_gone_is_refused_at_step_by_name(found: list[Any]) -> None:
    *_, said = found
    assert re.search(r"have no keras\.src\.losses\.loss\.scale_loss_for_distribution, which mirrorkit", said)
    assert re.search(r"TensorFlow 2\.18 to \S+ and Keras 3\.10 to", said)


def test_what_an_object_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = keras.optimizers.SGD()
    del optimizer.__dict__["_learning_rate"]
    with pytest.raises(BackendError, match=r"have no optimizer\._learning_rate"):
        private.check(optimizer=optimizer)


def test_weights_of_an_optimizer_whose_slots_have_other_names_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = keras.optimizers.Adam()
    assert treats_numbers_alike(optimizer)
    monkeypatch.setattr(keras.optimizers.Adam, "build", keras.optimizers.SGD.build)
    with pytest.warns(UserWarning, match=r"\._velocities, so small weights"):
        assert not treats_numbers_alike(optimizer)


def test_exclusions_from_weight_decay_that_cannot_be_passed_on_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    monkeypatch.setattr(keras.optimizers.AdamW, "_use_weight_decay", lambda self, variable: True)
    twin_for(optimizer, [StandIn((3,), "float32", decays=True)])
    with pytest.raises(BackendError, match=r"_weight_decay_by_var_key, which mirrorkit needs"):
        twin_for(optimizer, [StandIn((3,), "float32", decays=False)])


def test_replaced_and_put_back() -> None:
    original = keras.Operation.__call__
    with private.replace("Operation.__call__", lambda call, *args, **options: call(*args, **options)):
        assert keras.Operation.__call__ is not original
    assert keras.Operation.__call__ is original
