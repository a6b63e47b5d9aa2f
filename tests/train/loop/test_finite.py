"""A weight that becomes NaN while the loss stays finite ends the training by name, and is never saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from loop_helpers import calls_of
from step_helpers import Line
from training_helpers import as_new, keras_twin, line_net, plain_dataset, sequential, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError
from mirrorkit.train.checkpoints.folder import Folder

L = keras.layers
TWO = ("mirrored", 2)


class Mask(L.Layer):
    """Adds a mask that holds -inf, to numbers that go through an exponential."""

    def build(self, shape: Any) -> None:
        self.mask = self.add_weight(shape=(8,), initializer="zeros", trainable=False, name="mask")
        self.mask.assign([-np.inf] + [0.0] * 7)

    def call(self, x: Any) -> Any:
        return tf.nn.softmax(x + self.mask)


def hiding(*more: Any) -> Any:
    """Makes 0 of NaN behind its first layer, as ReLU does on some processors: the loss never shows it."""
    hide = L.Lambda(lambda x: tf.where(tf.math.is_nan(x), 0.0, x))
    return sequential((4,), L.Dense(8, name="first"), hide, *more, L.Dense(1))


def slope_at_zero() -> Any:
    """The loss of zeros is finite, but not its gradient."""
    return sequential((4,), L.Dense(1, use_bias=False, name="first"), L.Lambda(tf.sqrt), L.Rescaling(1.0))


def examples(numbers: Any, *, bad: int | None = None, batch: int = 6, value: float = np.nan) -> mk.data.Recipe:
    """Ten batches; one example of the batch `bad` holds a NaN."""
    x = np.abs(numbers[0])
    if bad is not None:
        x[batch * bad + 1, 2] = value
    return mk.data.batches(mk.data.arrays(x, numbers[1]), global_batch_size=batch)


def is_finite(values: Any) -> bool:
    return all(np.isfinite(value).all() for value in values if value.dtype.kind == "f")


def saved(folder: Path) -> list[str]:
    """The checkpoints, all of which hold finite numbers."""
    found = sorted(folder.glob("*.npz"))
    for file in found:
        assert is_finite(np.load(file).values()), file
    return [file.name for file in found]


@pytest.fixture(scope="module")
def masked(make_loop: Callable[..., Any]) -> mk.train.Loop:
    """A loop over `hiding` with a mask, on two replicas and with averages; compiled once."""
    return make_loop(TWO, lambda: hiding(Mask()), ema=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"ema": 0.9, "accumulate": 2}, pytest.param({"shard_optimizer": True}, marks=pytest.mark.slow)], ids=str
)
def test_a_nan_that_the_loss_does_not_show(
    options: dict[str, Any], make_loop: Any, numbers: Any, tmp_path: Path
) -> None:
    loop = make_loop(TWO, hiding, lambda: keras.optimizers.Adam(0.01), steps_per_call=2, **options)
    saver = mk.train.Checkpoints(tmp_path, every=2, keep=9)
    with pytest.raises(NonFiniteLossError, match=r"first/kernel .*became NaN") as caught:
        loop.fit(examples(numbers, bad=7), epochs=3, verbose=0, callbacks=[saver])
    error = caught.value
    assert error.variable.endswith("first/kernel")
    assert (error.epoch, error.step, error.batch) == (0, 7, 7)  # with a save after every call, none is passed over
    assert saved(tmp_path) == [f"step-{step:010d}.npz" for step in (2, 4, 6)]
    assert loop.restore(tmp_path).steps == 6
    assert is_finite(values_of(loop))


def test_a_gradient_that_is_not_finite(make_loop: Any, numbers: Any, tmp_path: Path) -> None:
    loop = make_loop(TWO, slope_at_zero, steps_per_call=1)
    loop.step.model.set_weights([np.ones((4, 1))])
    x = np.abs(numbers[0])
    x[54] = 0  # in the last batch: no later loss can show it
    data = mk.data.batches(mk.data.arrays(x, np.ones((60, 1), "float32")), global_batch_size=6)
    with pytest.raises(NonFiniteLossError, match=r"first/kernel .*training step 9 "):
        loop.fit(data, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path, every=1, keep=1)])
    assert saved(tmp_path) == ["step-0000000009.npz"]


def test_a_mask_of_infinities_or_of_numbers_whose_squares_overflow_is_no_alarm(masked: Any, numbers: Any) -> None:
    for value, callbacks in ((-np.inf, [mk.checks.NanWatch()]), (-1e30, [])):
        loop = as_new(masked)
        mask = loop.step.model.layers[2].mask
        mask.assign([value] + [0.0] * 7)
        loop.fit(examples(numbers), epochs=2, verbose=0, callbacks=callbacks)
        assert mask.numpy()[0] == np.float32(value)
        with pytest.raises(NonFiniteLossError, match="input of the batch: 1 NaN" if callbacks else "first/kernel"):
            loop.fit(examples(numbers, bad=7), epochs=2, verbose=0, callbacks=callbacks)


def test_what_a_callback_writes(masked: Any, numbers: Any, tmp_path: Path) -> None:
    """An infinity in a mask is its own business, a NaN is not."""
    loop = as_new(masked)
    mask = loop.step.model.layers[2].mask
    mask.assign(np.zeros(8))
    save = mk.train.Checkpoints(tmp_path)

    def write(value: float) -> Any:
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: mask.assign([value] + [0.0] * 7))

    loop.fit(examples(numbers), epochs=2, verbose=0, callbacks=[write(-np.inf), save])
    assert np.isinf(mask.numpy()).any()
    with pytest.raises(NonFiniteLossError, match=r"mask .*after training step 29"):
        loop.fit(examples(numbers), epochs=4, verbose=0, callbacks=[write(np.nan), save])
    assert sorted(file.name for file in tmp_path.glob("*.npz")) == ["step-0000000010.npz", "step-0000000020.npz"]


def test_steps_that_the_loss_scale_skips_are_no_alarm(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(TWO, slope_at_zero, lambda: keras.optimizers.SGD(1e-4), loss_scale="dynamic")
    loop.step.model.set_weights([np.ones((4, 1))])
    x = np.abs(numbers[0])
    x[54] = 0
    report = loop.fit(mk.data.batches(mk.data.arrays(x, numbers[1]), global_batch_size=6), epochs=2, verbose=0)
    assert report.skipped_steps == 2
    assert is_finite(values_of(loop))


def test_a_step_of_the_users_own(loop_over: Callable[..., Any], numbers: Any) -> None:
    class Hiding(Line):
        def __init__(self) -> None:
            super().__init__()
            self.net = hiding()

    loop = loop_over(Hiding, steps_per_call=4)
    with pytest.raises(NonFiniteLossError, match="first/kernel"):
        loop.fit(examples(numbers, bad=7), verbose=0)


def test_a_fit_that_begins_with_nan_says_so(make_loop: Any, numbers: Any, caplog: Any) -> None:
    loop = make_loop(TWO, hiding)
    kernel, *rest = loop.step.model.get_weights()
    loop.step.model.set_weights([np.full_like(kernel, np.nan), *rest])
    loop.fit(examples(numbers), verbose=0)
    assert "first/kernel: NaN when the fit begins" in caplog.text


# --- Keras's TerminateOnNaN: it ends as in Keras's fit, and what was saved before stays the newest


C = keras.callbacks
TEXT = "Batch 3: Invalid loss, terminating training"


class Hooks(C.Callback):  # type: ignore[name-defined]
    """Remembers which hooks came, and the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("batch", batch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch))

    def on_train_end(self, logs: Any = None) -> None:
        self.seen.append(("end", 0))


def _bad(numbers: Any, *, batch: int) -> Any:
    """Six batches of 10; one example of the given one, on the last replica, has a bad target."""
    y = numbers[1].copy()
    y[10 * batch + 9] = np.nan
    return plain_dataset(numbers[0], y, batch=10)


@pytest.fixture
def loop(line: Any) -> mk.train.Loop:
    """`line`, one step per call."""
    return calls_of(line, 1)


def test_it_ends_as_in_keras(loop: Any, numbers: Any, capsys: Any) -> None:
    data = _bad(numbers, batch=3)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    hooks = [Hooks(), Hooks()]
    good = plain_dataset(*numbers, batch=10)
    expected = model.fit(
        data, epochs=3, verbose=0, validation_data=good, callbacks=[hooks[0], C.TerminateOnNaN()]
    ).history
    assert TEXT in capsys.readouterr().out
    report = loop.fit(data, epochs=3, verbose=0, validation_data=good, callbacks=[hooks[1], C.TerminateOnNaN()])
    assert capsys.readouterr().out.strip() == TEXT
    assert report.history.keys() == expected.keys()
    np.testing.assert_equal(report.history["loss"], [np.nan])
    np.testing.assert_equal(expected["loss"], [np.nan])
    np.testing.assert_equal(report.history["val_loss"], expected["val_loss"])
    assert hooks[1].seen == hooks[0].seen == [*(("batch", i) for i in range(4)), ("epoch", 0), ("end", 0)]
    assert [epoch.steps for epoch in report.epochs] == [4]


def test_within_a_call_of_many_steps_the_bad_batch_is_named(line: Any, numbers: Any, capsys: Any) -> None:
    loop, hooks = calls_of(line, 6), Hooks()
    loop.fit(_bad(numbers, batch=3), epochs=3, verbose=0, callbacks=[C.TerminateOnNaN(), hooks])
    assert capsys.readouterr().out.strip() == TEXT
    assert hooks.seen == [("batch", 3), ("epoch", 0), ("end", 0)]


def test_checkpoints_of_before_stay_the_newest(loop: Any, numbers: Any, tmp_path: Path) -> None:
    good, bad = plain_dataset(*numbers, batch=10), _bad(numbers, batch=3)

    def fit(data: Any, epochs: int) -> Any:
        callbacks = [mk.train.Checkpoints(tmp_path, every=1), C.TerminateOnNaN()]
        return loop.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)

    fit(good, 1)
    assert not np.all(np.isfinite(np.array(fit(bad, 4).history["loss"])))
    assert not np.all(np.isfinite(values_of(loop)[0]))
    newest = Folder(tmp_path).find()[0]
    assert newest.startswith("step-0000000009")
    set_values(loop, [np.full_like(value, 7) for value in values_of(loop)])
    report = fit(good, 3)  # goes on, with good data
    assert np.all(np.isfinite(report.history["loss"]))
    assert len(report.history["loss"]) == 3
    assert loop.position.epoch == 3
    assert np.all(np.isfinite(values_of(loop)[0]))
