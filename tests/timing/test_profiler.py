from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


class Trained(keras.callbacks.Callback):
    """Counts the profiler's starts and stops against the steps done, without a profiler."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.steps, self.seen = 0, []
        monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: self.seen.append(("start", self.steps)))
        monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: self.seen.append(("stop", self.steps)))

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


def fit_with(callbacks, *, epochs=1, **compiled):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    model.fit(np.zeros([48, 2]), np.zeros([48, 1]), batch_size=8, epochs=epochs, callbacks=callbacks, verbose=0)


def test_profile_holds_the_steps_that_were_asked_for_across_epochs(monkeypatch):
    trained = Trained(monkeypatch)
    profile = mk.timing.profile("nowhere", steps=(4, 9))
    fit_with([trained, profile], epochs=3)  # 6 steps each
    assert trained.seen == [("start", 4), ("stop", 9)]
    assert profile.profiled == (4, 9)


def test_a_profile_in_a_loop_holds_whole_calls_and_an_error_leaves_no_profiler_running(strategy_of, tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("mine")

    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=4)
    split = mk.data.arrays(np.zeros([96, 2], np.float32), np.zeros([96, 1], np.float32))
    data = mk.data.batches(split, global_batch_size=8)
    with pytest.raises(KeyError, match="mine"):
        loop.fit(data, verbose=0, callbacks=[Fails(), mk.timing.profile(tmp_path, steps=(0, 12))])
    profile = mk.timing.profile(tmp_path, steps=(3, 6))
    loop.fit(data, verbose=0, callbacks=[profile])  # which could not start beside another
    assert profile.profiled == (4, 8)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000


@pytest.mark.parametrize("steps", [(5, 5), (-1, 3), (7, 2)])
def test_profile_of_no_steps(steps):
    with pytest.raises(StepError, match="give \\(first, end\\)"):
        mk.timing.profile("nowhere", steps=steps)
