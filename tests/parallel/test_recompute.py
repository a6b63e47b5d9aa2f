"""Recomputed activations change memory, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


class Own(L.Layer):
    """A block without an argument `training`, whose Dropout takes it from the call."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(**options)
        self.dense = L.Dense(12, activation="tanh", name="dense")
        self.norm, self.dropout = L.BatchNormalization(name="norm"), L.Dropout(0.3, seed=number, name="dropout")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.norm.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        self.add_loss(1e-3 * keras.ops.mean(x**2))
        return self.dropout(self.norm(self.dense(x)))


def net(wrap: Any) -> Any:
    x = h = keras.Input([12])
    for i in range(2):
        h = wrap(Own(i, name=f"block{i}"))(h)
    return keras.Model(x, L.Dense(3, name="head")(h))


def test_weights_are_the_same(strategy_of: Any) -> None:
    """With Dropout, BatchNormalization, regularizers and added losses."""
    strategy = strategy_of("mirrored", 2)
    results = []
    for wrap in (lambda block: block, mk.parallel.Recompute):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, optimizer = net(wrap), keras.optimizers.SGD(0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))
        rng = np.random.default_rng(0)
        split = mk.data.arrays(rng.normal(size=(64, 12)).astype("float32"), rng.integers(0, 3, 64))
        batches = mk.data.batches(split, global_batch_size=16)
        history = loop.fit(batches, verbose=0).history
        results.append((model.get_weights(), history["loss"], loop.predict(batches)))
    (weights, losses, outputs), (again, losses_again, outputs_again) = results
    assert len(weights) == len(again)
    for one, other in zip(weights, again, strict=True):
        assert np.allclose(one, other, atol=1e-6, rtol=0)
    assert losses == pytest.approx(losses_again, rel=1e-6)
    assert np.allclose(outputs, outputs_again, atol=1e-6)


class Remasked(L.Layer):
    """Passes its inputs on with another mask, or with none."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.drops, self.supports_masking = drops, True

    def call(self, x: Any) -> Any:
        return 2.0 * x

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return None if self.drops or previous_mask is None else keras.ops.logical_not(previous_mask)


@pytest.mark.parametrize("block", ["another", "drops, own", "pooled"])
def test_a_block_that_drops_the_mask(block: str) -> None:
    """Behind it nothing is masked, or what its last layer says; in outputs and gradients."""
    x = np.array([[1, 2, 0, 0, 0], [3, 0, 0, 0, 0], [1, 2, 3, 4, 5]])

    class Own(L.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.supports_masking = Remasked(drops=True), True

        def call(self, x: Any) -> Any:
            return self.inner(x)

    def made(wrap: Any) -> Any:
        keras.utils.set_random_seed(0)
        blocks = {
            "another": lambda: keras.Sequential([keras.Input([5, 4]), L.Dense(4), Remasked(drops=False)]),
            "drops, own": Own,
            "pooled": lambda: keras.Sequential([keras.Input([5, 4]), L.LSTM(4), L.RepeatVector(5)]),
        }
        inputs = keras.Input([5], dtype="int64")
        h = wrap(blocks[block]())(L.Embedding(9, 4, mask_zero=True)(inputs))
        return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(h)))

    found = []
    for wrap in (lambda block: block, mk.parallel.Recompute):
        model = made(wrap)
        with tf.GradientTape() as tape:
            outputs = model(x)
            loss = tf.reduce_sum(outputs**2)
        weights = [variable.value for variable in model.trainable_variables]
        found.append([outputs, *map(tf.convert_to_tensor, tape.gradient(loss, weights))])
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(plain, again, atol=1e-5)


def test_a_file_holds_it(tmp_path: Any) -> None:
    block = keras.Sequential([keras.Input([12]), L.Dense(12, activation="tanh"), L.BatchNormalization()])
    x = keras.Input([12])
    model = keras.Model(x, L.Dense(3)(mk.parallel.Recompute(block)(x)))
    model.save(tmp_path / "model.keras")
    x = np.ones([2, 12], "float32")
    assert np.allclose(keras.models.load_model(tmp_path / "model.keras")(x), model(x))


def test_an_added_loss_counts_once_whatever_the_address_of_its_tensor() -> None:
    """Without a gradient, the block's own tensor would be gone when the next block's comes."""
    keras.utils.set_random_seed(0)
    x = h = keras.Input([12])
    for i in range(6):
        inner = keras.Input([12])
        block = keras.Model(inner, L.ActivityRegularization(l2=1.0 + i)(inner), name=f"block{i}")
        h = mk.parallel.Recompute(block)(h)
    model = keras.Model(x, h)
    for rows in range(1, 9):
        with keras.StatelessScope(collect_losses=True):
            model(tf.ones([rows, 12]))
            counted = 12 * (1 if KERAS >= (3, 14) else rows)  # before, Keras added up the rows
            assert [float(loss) / counted for loss in model.losses] == pytest.approx([1, 2, 3, 4, 5, 6])


class Cross(L.Layer):
    """Mixes a second input in, and makes its layers without a `build`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.one, self.other = L.Dense(8, "tanh"), L.Dense(8)

    def call(self, x: Any, context: Any = None) -> Any:
        return self.one(x) * self.other(context)


def of_two_inputs(wrap: Any) -> Any:
    """The second input has a gradient, and a mask; the first is a scaled embedding, which Keras takes for sparse."""
    x = keras.Input([5], dtype="int32")
    h = L.Embedding(9, 8, mask_zero=True)(x)
    attention = L.MultiHeadAttention(2, 4)
    attention.build((None, 5, 8), (None, 5, 8))
    h = wrap(attention)(h * 2.5, value=h)
    c = L.Dense(8, name="context")(L.GlobalAveragePooling1D()(h))
    h = L.TimeDistributed(wrap(L.Dense(8, "gelu")))(h)
    return keras.Model(x, L.Dense(3)(wrap(Cross())(L.Flatten()(h), context=c)))


def test_inputs_by_name_have_gradients_and_masks() -> None:
    """Also of blocks that are not built yet; gradients by hand, the first time too."""
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, 9, (6, 5)))
    found = []
    for wrap in (lambda block: block, mk.parallel.Recompute):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = of_two_inputs(wrap)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids) ** 2)
        found.append(list(tape.gradient(loss, model.trainable_variables)))
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), atol=1e-5)


def test_inputs_by_position_and_what_is_no_layer_are_refused() -> None:
    with pytest.raises(TypeError, match="2 positional arguments but 3 were given"):
        mk.parallel.Recompute(L.MultiHeadAttention(2, 4))(tf.ones([1, 2, 3]), tf.ones([1, 2, 3]))
    with pytest.raises(StepError, match="found <function"):
        mk.parallel.Recompute(lambda x: x)
    block = L.SpectralNormalization(L.Dense(4))
    with pytest.raises(StepError, match=r"'spectral_normalization.*' assigns a trainable weight"):
        mk.parallel.Recompute(block)(tf.ones([2, 4]), training=True)


class Measures(L.Layer):
    """A metric of its own, a float32 layer, and a complex input."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.dense = keras.metrics.Mean("activity"), L.Dense(2, dtype="float32")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        y = self.dense(tf.math.real(x) + tf.math.imag(x))
        self.mean.update_state(y)
        return y


def test_metrics_precision_and_complex_inputs_are_those_of_the_block() -> None:
    found = []
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for wrap in (lambda block: block, mk.parallel.Recompute):
            keras.utils.set_random_seed(0)
            block = Measures()
            layer, kernel = wrap(block), tf.Variable([[1.01, 0.5, 0.3]])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(tf.complex(kernel, 2 * kernel)) ** 2)
            found.append([loss, tape.gradient(loss, kernel), block.mean.result()])
    finally:
        keras.config.set_dtype_policy(before)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


PEAK = """
import os
import numpy as np
import keras, tensorflow as tf
import mirrorkit as mk


def peak():  # resource.getrusage would begin with that of the process that started this one
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])


tf.config.threading.set_intra_op_parallelism_threads(1)
wrap = mk.parallel.Recompute if os.environ["HOW"] == "recompute" else lambda block: block
keras.utils.set_random_seed(0)
x = h = keras.Input([128])
for i in range(8):
    layers = [keras.layers.Dense(128, activation="gelu") for _ in range(4)]
    h = wrap(keras.Sequential([keras.Input([128]), *layers], name=f"block{i}"))(h)
model = keras.Model(x, keras.layers.Dense(10)(h))
rows = 8192
batch = np.random.default_rng(0).normal(size=(rows, 128)).astype("float32"), np.arange(rows) % 10
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(tf.distribute.get_strategy(), mk.train.Step(model, keras.optimizers.SGD(0.01), loss=loss))
data = tf.data.Dataset.from_tensors(batch)
before = peak()
loop.fit(data, epochs=2, verbose=0)
print(peak() - before)
print(float(sum(np.sum(np.abs(w)) for w in model.get_weights())))
"""


@pytest.mark.slow
def test_peak_memory_is_at_most_half(run_python: Any) -> None:
    """Of a deep net, in fresh processes; the weights are the same."""
    plain, recomputed = (run_python(PEAK, env={"HOW": how}).stdout.split()[-2:] for how in ("plain", "recompute"))
    assert int(recomputed[0]) < int(plain[0]) / 2
    assert float(recomputed[1]) == pytest.approx(float(plain[1]), rel=1e-6)
