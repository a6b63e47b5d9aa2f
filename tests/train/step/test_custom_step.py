"""A user's own step in Loop: a small GAN with two optimizers, and what the protocol refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, largest_difference, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


class Gan:
    """Goodfellow et al. 2014 (arXiv:1406.2661), the generator with the non-saturating loss.

    Generator and discriminator are updated at the same time, from one pass over the batch. A batch is `(real, noise)`.
    """

    def __init__(self, generator: Any, discriminator: Any, generator_optimizer: Any, discriminator_optimizer: Any):
        self.nets = {"generator": generator, "discriminator": discriminator}
        self.optimizers = {"generator": generator_optimizer, "discriminator": discriminator_optimizer}
        self._update: mk.train.Update | None = None

    @property
    def variables(self) -> list[Any]:
        """Weights and slots of both, in the order in which `_new_values` gets them."""
        return [v for name in self.nets for v in (*self._weights(name), *self.optimizers[name].variables)]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create the optimizers' slots."""
        if self._update is None:
            with strategy.scope():
                for name, optimizer in self.optimizers.items():
                    optimizer.build(self._weights(name))
            self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> dict[str, Any]:
        """Sum both losses and their gradients over this replica's examples."""
        real, noise = batch
        generate, judge = self.nets["generator"], self.nets["discriminator"]
        with tf.GradientTape(persistent=True) as tape:
            fake = generate(noise, training=True)
            fooled = judge(fake, training=True)
            losses = {
                "generator": tf.reduce_sum(tf.nn.softplus(-fooled)),
                "discriminator": tf.reduce_sum(tf.nn.softplus(-judge(real, training=True)) + tf.nn.softplus(fooled)),
            }
        gradients = {name: tape.gradient(loss, [v.value for v in self._weights(name)]) for name, loss in losses.items()}
        return {"gradients": gradients, "losses": losses, "examples": tf.cast(tf.shape(real)[0], tf.float32)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> dict[str, tf.Tensor]:
        """Reduce the sums and train both nets with the mean gradients."""
        assert self._update is not None
        return self._update(sums)

    def _weights(self, name: str) -> list[Any]:
        return self.nets[name].trainable_variables

    def _new_values(self, sums: Any, values: list[tf.Tensor]) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        new: list[tf.Tensor] = []
        for name, optimizer in self.optimizers.items():
            weights, slots = len(self._weights(name)), len(optimizer.variables)
            own = values[len(new) : len(new) + weights + slots]
            gradients = [gradient / sums["examples"] for gradient in sums["gradients"][name]]
            for part in mk.optim.functional_apply(optimizer, own[:weights], own[weights:], gradients):
                new += part
        return new, {f"{name}_loss": loss / sums["examples"] for name, loss in sums["losses"].items()}


def _nets() -> list[Any]:
    keras.utils.set_random_seed(3)
    generator = keras.Sequential([keras.Input((3,)), L.Dense(8, activation="tanh"), L.Dense(2)])
    discriminator = keras.Sequential([keras.Input((2,)), L.Dense(8, activation="tanh"), L.Dense(1)])
    return [generator, discriminator]


def _optimizers() -> list[Any]:
    return [keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.SGD(0.05, momentum=0.5)]


@pytest.fixture(scope="module")
def points() -> tf.data.Dataset:
    """Points on a circle beside noise: 50, in batches of 12, so that the last one holds 2."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 50)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1).astype("float32")
    return plain_dataset(circle, rng.normal(size=(50, 3)).astype("float32"), batch=12)


@pytest.fixture
def make_gan(strategy_of: Any) -> Any:
    def make(where: tuple[str, int]) -> tuple[Gan, mk.train.Loop]:
        strategy = strategy_of(*where)
        with strategy.scope():
            gan = Gan(*_nets(), *_optimizers())
        return gan, mk.train.Loop(strategy, gan, steps_per_call=2)

    return make


@pytest.fixture(scope="module")
def by_hand(points: tf.data.Dataset) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """The same training in plain Keras on one device: weights, and the mean of each loss per epoch."""
    generator, discriminator = _nets()
    first, second = _optimizers()
    history: dict[str, list[float]] = {"generator_loss": [], "discriminator_loss": []}
    for _ in range(2):
        totals = np.zeros(2)
        for real, noise in points:
            with tf.GradientTape(persistent=True) as tape:
                fooled, judged = discriminator(generator(noise)), discriminator(real)
                g_loss = tf.reduce_mean(tf.nn.softplus(-fooled))
                d_loss = tf.reduce_mean(tf.nn.softplus(-judged) + tf.nn.softplus(fooled))
            g_gradient = tape.gradient(g_loss, generator.trainable_variables)
            d_gradient = tape.gradient(d_loss, discriminator.trainable_variables)
            first.apply(g_gradient, generator.trainable_variables)
            second.apply(d_gradient, discriminator.trainable_variables)
            totals += len(real) * np.array([g_loss, d_loss])
        for values, total in zip(history.values(), totals, strict=True):
            values.append(total / 50)
    return [*generator.get_weights(), *discriminator.get_weights()], history


def test_a_gan_trains_on_replicas_as_by_hand(
    make_gan: Any, points: Any, by_hand: Any, assert_replicas_equal: Any
) -> None:
    gan, loop = make_gan(("mirrored", 2))
    report = loop.fit(points, epochs=2, verbose=0)
    weights, history = by_hand
    found = [*gan.nets["generator"].get_weights(), *gan.nets["discriminator"].get_weights()]
    assert largest_difference(found, weights) < 1e-5  # measured: 6e-8
    assert report.history.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-5)
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(50, 5)] * 2
    assert_replicas_equal(loop)


def test_warm_up_puts_a_users_step_back_and_the_same_step_in_the_open_gives_the_same_bits(
    make_gan: Any, points: Any, copies: Any
) -> None:
    _, loop = make_gan(("mirrored", 2))
    before = copies(loop)
    loop.warm_up(points)
    for one, other in zip(before, copies(loop), strict=True):
        np.testing.assert_array_equal(one, other)
    assert loop._passes.calls.traces == 1
    loop.fit(points, verbose=0)
    assert loop._passes.calls.traces == 1

    expected = copies(loop)
    other, loop = make_gan(("mirrored", 2))
    strategy = loop.strategy

    @tf.function
    def train_step(batch: Any) -> Any:
        return other.update(strategy, strategy.run(other.compute, args=(batch,)))

    for batch in mk.data.distribute(points, strategy):
        logs = train_step(batch)
    assert set(logs) == {"generator_loss", "discriminator_loss"}
    for one, two in zip(expected, copies(loop), strict=True):
        np.testing.assert_array_equal(one, two)


def test_any_log_that_is_not_finite_stops_the_run(make_gan: Any, points: Any) -> None:
    _, loop = make_gan(("one_device", 1))
    bad = points.enumerate().map(lambda i, batch: (batch[0] / tf.where(i == 3, 0.0, 1.0), batch[1]))
    with pytest.raises(NonFiniteLossError) as error:
        loop.fit(bad, verbose=0)
    assert error.value.step == 3


def test_evaluate_and_predict_are_for_steps_with_a_model(make_gan: Any, points: Any) -> None:
    _, loop = make_gan(("one_device", 1))
    for call in (loop.evaluate, loop.predict):
        with pytest.raises(StepError, match=r"needs a mk\.train\.Step; Gan only trains"):
            call(points)
    with pytest.raises(StepError, match="evaluate needs"):
        loop.fit(points, validation_data=points, verbose=0)


def test_a_model_attribute_serves_the_callbacks(make_gan: Any, points: Any, tmp_path: Any) -> None:
    gan, loop = make_gan(("mirrored", 2))
    gan.model = gan.nets["generator"]
    loop = mk.train.Loop(loop.strategy, gan)
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "generator.keras")
    stopping = keras.callbacks.EarlyStopping("generator_loss", mode="max", patience=0, min_delta=1e9)
    report = loop.fit(points, epochs=5, callbacks=[saver, stopping], verbose=0)
    assert len(report.epochs) < 5
    noise = np.ones((4, 3), "float32")
    loaded = keras.models.load_model(tmp_path / "generator.keras")
    np.testing.assert_allclose(loaded(noise), gan.nets["generator"](noise), atol=1e-6)


class _Average:
    """The smallest step: moves one number to the mean of the data."""

    def __init__(self, logs: Any = None) -> None:
        self._logs = logs or (lambda mean, sums: {"loss": mean})

    def build(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():
            self.value = tf.Variable(0.0)
        self.variables = [self.value]
        self._update = mk.train.Update(strategy, self.variables, self._new_values)

    def compute(self, batch: Any) -> Any:
        return {"sum": tf.reduce_sum(batch), "examples": tf.cast(tf.shape(batch)[0], tf.float32)}

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Any:
        return self._update(sums)

    def _new_values(self, sums: Any, values: Any) -> Any:
        mean = sums["sum"] / sums["examples"]
        return [mean], self._logs(mean, sums)


@pytest.mark.parametrize("where", KINDS, ids=str)
def test_a_plain_tensorflow_variable_will_do(where: Any, strategy_of: Any) -> None:
    step = _Average()
    loop = mk.train.Loop(strategy_of(*where), step)
    data = tf.data.Dataset.from_tensor_slices(tf.range(4, dtype=tf.float32)).batch(4)  # 2, 2, 0 on three replicas
    report = loop.fit(data, verbose=0)
    assert report.history == {"loss": [1.5]}
    for copy in loop.strategy.experimental_local_results(step.value):
        assert float(copy) == 1.5


@pytest.mark.parametrize(
    ("logs", "match"),
    [
        (lambda mean, sums: {}, "returned no logs"),
        (lambda mean, sums: {"loss": tf.stack([mean, mean])}, r"\['loss'\].*scalars"),
        (lambda mean, sums: {"loss": mean, "lr": 0.1}, r"\['lr'\].*scalars"),
    ],
    ids=["none", "vector", "number"],
)
def test_logs_that_are_none(logs: Any, match: str, strategy_of: Any) -> None:
    loop = mk.train.Loop(strategy_of("mirrored", 2), _Average(logs))
    with pytest.raises(StepError, match=match):
        loop.fit(tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4), verbose=0)


def test_an_update_can_leave_a_variable_alone(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        moved, left = tf.Variable(1.0), keras.Variable(2.0)
    update = mk.train.Update(strategy, [moved, left], lambda sums, values: ([values[0] + sums, None], sums))
    total = tf.function(lambda: update(strategy.run(lambda: tf.constant(3.0))), autograph=False)()
    assert float(total) == 6.0  # summed over both replicas
    assert [float(copy) for copy in strategy.experimental_local_results(moved)] == [7.0, 7.0]
    assert float(left.numpy()) == 2.0


def test_sums_of_unknown_shape_are_refused(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    update = mk.train.Update(strategy, [], lambda sums, values: ([], sums))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,))])
    def run(x: tf.Tensor) -> Any:
        return update(strategy.run(lambda: x))

    with pytest.raises(StepError, match="static shape"):
        run(tf.ones(3))


def test_from_compiled_takes_the_optimizer_and_options_of_a_step(strategy_of: Any) -> None:
    with strategy_of("mirrored", 2).scope():
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    step = mk.train.Step.from_compiled(model, clip_norm=2.0)
    assert step.optimizer is model.optimizer
    assert step._options.clip.norm == 2.0
