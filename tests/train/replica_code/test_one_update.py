"""A `train_step` that makes one update is a function: it trains under every strategy, with every option."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import own_models
import pytest
import tensorflow as tf
from test_own_train_step import largest
from training_helpers import plain_dataset

import mirrorkit as mk
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import copies

ONE_UPDATE = {"vae", "distillation", "reshapes"}


def _dataset(rows: int = 50) -> Any:
    return plain_dataset(*own_models.data(rows), batch=16)


@pytest.mark.parametrize("name", own_models.MODELS)
def test_which_steps_are_functions(loop_over: Any, name: str) -> None:
    """The others make several updates, read weights after one, or write what Keras knows nothing of."""
    loop = loop_over(own_models.MODELS[name])
    built = loop.step.for_loop(loop.strategy, _dataset().element_spec)
    assert type(built) is (Supervised if name in ONE_UPDATE else KerasStep)


class Own(keras.Model):  # type: ignore[misc]
    """Keras's own `train_step`, as far as a script can say it, with a table and what else options are about."""

    def __init__(self, synchronized: bool) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(40, 4)
        self.norm, self.head = keras.layers.BatchNormalization(synchronized=synchronized), keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.norm(keras.ops.mean(self.table(x), axis=1), training=training))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Plain(Own):
    train_step = keras.Model.train_step


def _trained(kind: Any, strategy: Any, options: Any, optimizer: Any, layout: Any = None) -> tuple[Any, Any]:
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 40, (50, 5)), rng.integers(0, 3, 50)
    is_alone = layout is not None or {"jit_compile", "sparse_embeddings"} & set(options)  # talks to no other replica
    with layout or contextlib.nullcontext(), strategy.scope():
        model = kind(synchronized=not is_alone)
        model(x[:1])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"], auto_scale_loss=False)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model, **options))
    arrays = mk.data.arrays(x.astype("int32"), y)
    data = mk.data.batches(arrays, global_batch_size=16, shuffle=False, drop_remainder=False)
    history = loop.fit(data, epochs=2, verbose=0).history
    return history, [copies(variable)[0].numpy() for variable in loop.step.variables]


ALL_AT_ONCE = {"accumulate": 2, "ema": 0.9, "clip_value": 0.01, "shard_optimizer": True}
OPTIONS = [
    {"clip_norm": 0.1},
    {"loss_scale": "dynamic"},
    {"sparse_embeddings": "lazy"},
    {"jit_compile": True},
]
CASES = [
    ("one_device", 1, {}),
    pytest.param("central_storage", 2, {}, marks=pytest.mark.slow),
    ("mirrored", 2, ALL_AT_ONCE),
    pytest.param("mirrored", 3, {}, marks=pytest.mark.slow),
    *(pytest.param("mirrored", 2, options, marks=pytest.mark.slow) for options in OPTIONS),
]


@pytest.mark.parametrize(("kind", "replicas", "options"), CASES, ids=str)
def test_it_trains_as_the_same_model_without_it(strategy_of: Any, kind: str, replicas: int, options: Any) -> None:
    """Keras's own `train_step` gives parts of the mean over the batch; another's means are multiplied afterwards."""
    strategy = strategy_of(kind, replicas)
    found, expected = (_trained(one, strategy, options, lambda: keras.optimizers.Adam(0.01)) for one in (Own, Plain))
    assert found[0].keys() == expected[0].keys()
    for name, values in expected[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-6, err_msg=name)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_a_model_on_several_devices() -> None:
    def trained(kind: Any) -> Any:
        layout = mk.parallel.Layout({"embedding": 0, ".": 1}, devices=["cpu:0", "cpu:1"])
        return _trained(kind, layout.strategy(), {}, lambda: keras.optimizers.Adam(0.01), layout)

    (found, weights), (expected, others) = trained(Own), trained(Plain)
    assert found == {name: pytest.approx(values, rel=1e-6) for name, values in expected.items()}
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


class Tagger(keras.Model):  # type: ignore[misc]
    """A mean over the positions that a mask leaves, of which replicas have unequal numbers; logs what Keras logs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(20, 4, mask_zero=True)
        self.head = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.table(x))

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class TwoUpdates(Tagger):
    """The same, with an update that changes nothing before."""

    def train_step(self, data: Any) -> Any:
        weights = self.trainable_variables
        self.nothing.apply([tf.zeros(weight.shape) for weight in weights], weights)
        return super().train_step(data)

    def compile(self, *args: Any, **options: Any) -> None:
        super().compile(*args, **options)
        self.nothing = keras.optimizers.SGD(0.0)


def _tagged(kind: Any, weighted: bool) -> Any:
    keras.utils.set_random_seed(0)
    model = kind()
    reduction = "mean_with_sample_weight" if weighted else "sum_over_batch_size"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


@pytest.mark.parametrize(
    ("kind", "weighted", "replicas"),
    [
        (Tagger, True, 2),
        (TwoUpdates, False, 3),
        pytest.param(Tagger, False, 3, marks=pytest.mark.slow),
        pytest.param(TwoUpdates, True, 2, marks=pytest.mark.slow),
    ],
)
def test_a_mean_under_a_mask_is_that_of_all_rows(loop_over: Any, kind: Any, weighted: bool, replicas: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.linspace(1, 8, 50).astype(int)  # the first replica has the shortest
    x = np.where(np.arange(8) < lengths[:, None], rng.integers(1, 20, (50, 8)), 0)
    parts = [x, rng.integers(0, 3, (50, 8)), *([rng.uniform(size=(50, 8))] * weighted)]
    expected = _tagged(kind, weighted)
    history = expected.fit(plain_dataset(*parts, batch=16), epochs=2, verbose=0).history
    loop = loop_over(lambda: _tagged(kind, weighted), ("mirrored", replicas))
    found = loop.fit(plain_dataset(*parts, batch=16), epochs=2, verbose=0).history
    for one, other in zip(loop.step.model.get_weights(), expected.get_weights(), strict=True):
        assert largest(one, other) < 2e-6
    assert largest(found["loss"], history["loss"]) < 2e-6


class Base(own_models.Tracked):
    """A step that is a function, but for what a subclass does before and after its update."""

    def __init__(self) -> None:
        super().__init__()
        self.net = own_models.dense(6, 3)
        self.kernel = self.net.layers[0].kernel

    def before(self, loss: Any) -> Any:
        return loss

    def update(self, tape: Any, loss: Any) -> Any:
        return self.minimize(tape, loss)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.before(tf.reduce_mean((self.net(x) - y) ** 2))
        return self.update(tape, loss)


def _compiled(kind: Any) -> Any:
    """Return what makes such a model, and compiles it."""
    return own_models.made(kind, optimizer=lambda: keras.optimizers.SGD(0.1))


class Assigns(Base):
    def before(self, loss: Any) -> Any:
        self.kernel.assign(0.9 * self.kernel)
        return loss


class ReadsACount(Base):
    def before(self, loss: Any) -> Any:
        return loss * (1 + self.tracker.result())


class TakesTheLargest(Base):
    def before(self, loss: Any) -> Any:
        self.tracker.total.assign(tf.maximum(self.tracker.total, 1.0))
        return loss


class CountsUpdates(Base):
    def before(self, loss: Any) -> Any:
        return loss / (1 + tf.cast(self.optimizer.iterations, tf.float32))


class ReadsAWeight(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        logs = super().update(tape, loss)
        self.tracker.update_state(tf.reduce_sum(self.kernel))
        return logs


class UpdatesTwice(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        gradients = tape.gradient(loss, self.trainable_variables)
        for _ in range(2):
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class UpdatesNothing(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        return {"loss": loss}


class LogsItself(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        return super().update(tape, loss) | {"last": loss}


class Chooses(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        gradients, weights = tape.gradient(loss, self.trainable_variables), self.trainable_variables
        tf.cond(loss > 0, lambda: self.optimizer.apply(gradients, weights) or 0, lambda: 0)
        return {"loss": loss}


class TrainsAPart(Base):
    def compile(self, optimizer: Any) -> None:
        super().compile(optimizer)
        optimizer.build([self.kernel])


class Summarizes(Base):
    def before(self, loss: Any) -> Any:
        tf.summary.scalar("loss", loss, step=0)
        return loss


class LooksAtAnotherMetric(Base):
    def __init__(self) -> None:
        super().__init__()
        self.late = keras.metrics.Mean(name="late")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.late]

    def update(self, tape: Any, loss: Any) -> Any:
        is_warm = tf.cast(self.tracker.count.value >= 2.0, tf.float32)
        logs = super().update(tape, loss)
        self.late.update_state([loss], sample_weight=[is_warm])
        return logs | {"late": self.late.result()}


class Smoothed(keras.metrics.Mean):  # type: ignore[misc]
    def reset_state(self) -> None:
        super().reset_state()
        self.count.assign(1.0)


class BeginsAtOne(Base):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = Smoothed(name="loss")


class UpdatesAWeightTwice(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        gradients, weights = tape.gradient(loss, self.trainable_variables), self.trainable_variables
        self.optimizer.apply(gradients * 2, weights * 2)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class KeepsAValue(Base):
    def update(self, tape: Any, loss: Any) -> Any:
        value = self.kernel.value
        logs = super().update(tape, loss)
        self.tracker.update_state(tf.norm(value))
        return logs


class DrawsInALoop(Base):
    def before(self, loss: Any) -> Any:
        return loss + tf.reduce_mean(tf.map_fn(lambda _: tf.random.normal([]), tf.zeros([3])))


class Centers(Base):
    def __init__(self) -> None:
        super().__init__()
        self.center = self.add_weight(shape=(), initializer="zeros", trainable=False, name="center")

    def before(self, loss: Any) -> Any:
        self.center.assign(0.5 * self.center + 0.5 * tf.stop_gradient(loss))
        return loss * (1 + self.center)


class KeepsACodeBook(Base):
    """What is read again goes into other state alone: a quotient of two averages is no average of quotients."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.counts, self.book = (
            self.add_weight(shape=(), initializer="ones", trainable=False, name=name)
            for name in ("sums", "counts", "book")
        )

    def before(self, loss: Any) -> Any:
        self.sums.assign(0.9 * self.sums + 0.1 * tf.stop_gradient(loss))
        self.counts.assign(0.9 * self.counts + 0.1 * tf.stop_gradient(loss) ** 2)
        self.book.assign(self.sums / self.counts)
        return loss


class KeepsCounting(Base):
    def reset_metrics(self) -> None:
        pass


REASONS = {
    KeepsACodeBook: "it computes with '.*sums' after it was assigned",
    KeepsCounting: "its metrics do not begin an epoch with 'loss/total' at 0",
    LooksAtAnotherMetric: "it does more to 'late/.*' than to add to it",
    BeginsAtOne: "its metrics do not begin an epoch with 'loss/count' at 0",
    UpdatesAWeightTwice: "it gives an optimizer a weight twice",
    KeepsAValue: "it uses the value of a weight after the update",
    DrawsInALoop: "it draws random numbers within a loop",
    Centers: "it computes with '.*center' after it was assigned",
    Assigns: "it assigns the weight '.*kernel'",
    ReadsACount: "it computes with what a metric has counted",
    TakesTheLargest: "it does more to 'loss/total' than to add to it",
    CountsUpdates: "it reads '.*iteration', which the update changes",
    ReadsAWeight: "it reads the weight '.*kernel' after the update",
    UpdatesTwice: "it makes several updates",
    UpdatesNothing: "it makes no update by an optimizer's apply",
    LogsItself: r"it logs \['last', 'loss'\], and the metrics are \['loss'\]",
    Chooses: "an update is made within a tf.cond",
    Summarizes: "it calls tf.summary",
    TrainsAPart: "its optimizer is built for other weights than those of the model",
}


@pytest.mark.parametrize("kind", [Base, *REASONS])
def test_why_a_step_is_no_function(kind: Any) -> None:
    own = OwnStep(_compiled(kind)(), replicas=2)
    if kind is Base:
        assert isinstance(own.found("train", own_models.data(4)).optimizer, keras.optimizers.SGD)
        return
    with pytest.raises(NotAFunction, match=REASONS[kind]):
        own.found("train", own_models.data(4))


@pytest.mark.parametrize("by_user", [True, False])
def test_the_trace_of_keras_own_step_takes_no_gradient(by_user: bool) -> None:
    """It would take as long as the forward pass, and Keras's own step does nothing with gradients but apply them."""
    taken = []

    @tf.custom_gradient
    def noted(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            taken.append(upstream)
            return upstream

        return tf.identity(x), gradient

    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Lambda(noted)(keras.layers.Dense(1)(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    OwnStep(model, replicas=2, by_user=by_user).found("train", own_models.data(4))
    assert len(taken) == by_user


def test_data_that_no_function_takes() -> None:
    model = _compiled(Base)()
    for data in (
        tf.ragged.constant([[1.0]]),
        tf.RaggedTensorSpec([None, None]),
        tf.TensorSpec(None),
        tf.SparseTensorSpec(),
    ):
        with pytest.raises(NotAFunction, match="its data is not dense"):
            OwnStep(model, replicas=2).found("train", (data, data))


def test_a_prediction_before_the_training_decides_nothing(loop_over: Any) -> None:
    """`x` alone does not train, and tells nothing of the step."""
    loop = loop_over(own_models.MODELS["distillation"])
    x, y = own_models.data(32)
    assert loop.predict(x).shape == (32, 3)
    assert type(loop.step.for_loop(loop.strategy)) is KerasStep
    loop.fit(x, y, batch_size=16, verbose=0)
    assert type(loop.step.for_loop(loop.strategy)) is Supervised
    loop.predict(x)
    assert type(loop.step.for_loop(loop.strategy)) is Supervised


class Draws(Base):
    """Logs what it draws; nothing of it has a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = keras.metrics.Mean(name="drawn")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.drawn]

    def update(self, tape: Any, loss: Any) -> Any:
        logs = super().update(tape, loss)
        self.drawn.update_state(tf.random.normal([1]))
        return logs | {"drawn": self.drawn.result()}


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_step_draws_other_numbers(loop_over: Any, replicas: int) -> None:
    loop = loop_over(_compiled(Draws), ("mirrored" if replicas > 1 else "one_device", replicas), unchecked="rows")
    drawn = loop.fit(_dataset(16), epochs=5, verbose=0).history["drawn"]  # an epoch has one step
    assert type(loop.step.for_loop(loop.strategy)) is Supervised
    assert len(set(drawn)) == 5


class Watches(Base):
    """Asks for gradients by a frozen weight, and of a tape that watches what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = own_models.dense(6, 4, 3)
        self.net.layers[0].trainable = False

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([self.net.layers[1].kernel.value])
            with tf.GradientTape() as inner:
                loss = tf.reduce_mean((self.net(x) - y) ** 2)
            slope = inner.gradient(loss, self.net.layers[0].kernel, unconnected_gradients="zero")
            loss += tf.reduce_sum(slope)
        return self.minimize(tape, loss)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_tapes_watch_what_they_watch_in_keras(loop_over: Any) -> None:
    keras.utils.set_random_seed(0)
    expected, loop = _compiled(Watches)(), loop_over(_compiled(Watches), ("one_device", 1))
    expected.fit(_dataset(), verbose=0)
    loop.fit(_dataset(), verbose=0)
    assert type(loop.step.for_loop(loop.strategy)) is Supervised
    for one, other in zip(loop.step.model.get_weights(), expected.get_weights(), strict=True):
        assert largest(one, other) < 1e-6
