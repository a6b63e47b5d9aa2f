"""Custom losses, metrics and layers; regularizers, constraints, optimizer options, callbacks, mixed precision."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from entries import BATCH, EPOCHS, TWO, WORKERS, Fit, Rows, Script, Trained, dense, net, recipe, split
from nets_dense import itself, one_hot, regression

import mirrorkit as mk
from mirrorkit._keras import keras

L, K, _o = keras.layers, keras.ops, keras.optimizers


class LogCosh(keras.losses.Loss):
    """A loss that Keras does not know."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def call(self, y: Any, y_pred: Any) -> Any:
        error = self.scale * (y_pred - y)
        return K.mean(error + K.softplus(-2 * error) - K.log(2.0), axis=-1)


class FocalLoss(keras.losses.Loss):
    def call(self, y: Any, y_pred: Any) -> Any:
        p = K.clip(y_pred, 1e-6, 1.0)
        return K.sum(-y * (1 - p) ** 2 * K.log(p), axis=-1)


class WithinHalf(keras.metrics.Metric):
    """The share of predictions within 0.5."""

    def __init__(self) -> None:
        super().__init__(name="within_half")
        self.hits, self.all = (self.add_weight(name=name, initializer="zeros") for name in ("hits", "all"))

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        near = K.cast(K.abs(y - y_pred) < 0.5, "float32")
        self.hits.assign_add(K.sum(near))
        self.all.assign_add(K.cast(K.size(near), "float32"))

    def result(self) -> Any:
        return self.hits / self.all


class Sparse(L.Layer):
    """Pulls the mean activity to 0.2, through add_loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * K.mean((x - 0.2) ** 2))
        return x


class Centered(L.Layer):
    """Keeps a moving mean of its inputs, which nobody synchronizes, and what it returns holds those of the batch."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * K.mean(x, axis=0))
        return x - K.stop_gradient(self.mean)


class Reconstruction(L.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(K.mean((x[0] - x[1]) ** 2))
        return x[1]


def alone() -> Any:
    inputs = keras.Input((8,))
    return keras.Model(inputs, Reconstruction()([inputs, L.Dense(8)(L.Dense(3, "tanh")(inputs))]))


def alone_before(train: Rows, test: Rows) -> Trained:
    model = alone()
    model.compile(_o.SGD(0.1), jit_compile=False)
    fitted = model.fit(*train, batch_size=BATCH, shuffle=False, epochs=EPOCHS, verbose=0)
    return Trained([model], [model.optimizer], fitted.history, model.predict(test[0], verbose=0))


def alone_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        model = alone()
        model.compile(_o.SGD(0.1), jit_compile=False)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    fitted = loop.fit(recipe(train), epochs=EPOCHS, verbose=0)
    return Trained([model], [model.optimizer], fitted.history, loop.predict(recipe(test)))


def ema_before(train: Rows, test: Rows) -> Trained:
    """Keras puts the averages into the weights at the end."""
    model = net(dense(6, "tanh"), dense(1))()
    model.compile(_o.SGD(0.1, use_ema=True, ema_momentum=0.8), "mse", jit_compile=False)
    fitted = model.fit(*train, batch_size=BATCH, shuffle=False, epochs=EPOCHS, verbose=0)
    return Trained([model], [], fitted.history, model.predict(test[0], verbose=0))


def ema_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        model = net(dense(6, "tanh"), dense(1))()
        model.compile(_o.SGD(0.1), "mse", jit_compile=False)
    step = mk.train.Step.from_compiled(model, ema=0.8)
    loop = mk.train.Loop(strategy, step)
    fitted = loop.fit(recipe(train), epochs=EPOCHS, verbose=0)
    for variable, average in zip(model.trainable_variables, _averages(step), strict=True):
        variable.assign(average)
    return Trained([model], [], fitted.history, loop.predict(recipe(test)))


def _averages(step: Any) -> list[Any]:
    with step.averaged():
        return [tf.identity(v.value).numpy() for v in step.model.trainable_variables]


ENTRIES = [
    Fit(
        name="a Loss subclass that is not registered",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        loss=lambda: LogCosh(2.0),
    ),
    Fit(
        name="focal loss, label smoothing as a metric",
        data=split(one_hot),
        model=net(dense(6, "tanh"), dense(3, "softmax")),
        loss=lambda: FocalLoss(),
        metrics=lambda: [keras.metrics.CategoricalCrossentropy(label_smoothing=0.1, name="smooth")],
    ),
    Fit(
        name="a Metric subclass and a metric function",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        metrics=lambda: [WithinHalf(), _largest_error],
    ),
    Fit(
        name="add_loss in a layer, activity regularizer",
        data=split(regression),
        model=net(dense(6, "sigmoid"), Sparse, dense(4, "tanh", activity_regularizer="l2"), dense(1)),
    ),
    Fit(
        name="kernel regularizers, constraints, orthogonal initializer",
        data=split(regression),
        model=net(
            lambda: L.Dense(
                6,
                "tanh",
                kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2),
                kernel_constraint=keras.constraints.MaxNorm(0.8),
                kernel_initializer="orthogonal",
            ),
            dense(4, "sigmoid", kernel_constraint="non_neg"),
            dense(1, kernel_constraint=keras.constraints.UnitNorm()),
        ),
    ),
    Fit(
        name="a layer with a moving mean of its own",
        data=split(regression),
        model=net(dense(6, "tanh"), Centered, dense(1)),
        refused="depends on the other examples",
        refused_on=(TWO, WORKERS),
        loss=lambda: keras.losses.MeanSquaredError(),
    ),
    Fit(
        name="gradient clipping by global norm",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        optimizer=lambda: _o.SGD(0.2, momentum=0.9, global_clipnorm=0.3),
    ),
    Fit(
        name="gradient clipping by value, Lion",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        optimizer=lambda: _o.Lion(0.01, clipvalue=0.05),
    ),
    Script(
        name="compiled without a loss, add_loss alone",
        data=lambda: tuple((x,) for x, _ in split(itself)()),
        before=alone_before,
        after=alone_after,
    ),
    Script(name="averages of the weights (EMA)", data=split(regression), before=ema_before, after=ema_after),
    Fit(
        name="ReduceLROnPlateau",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        callbacks=lambda: [keras.callbacks.ReduceLROnPlateau("loss", 0.3, patience=1, min_delta=1.0)],
    ),
    Fit(
        name="LearningRateScheduler",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        optimizer=lambda: _o.Adam(0.01),
        callbacks=lambda: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7**epoch)],
    ),
    Fit(
        name="EarlyStopping, restore_best_weights",
        data=split(regression),
        model=net(dense(6, "tanh"), dense(1)),
        optimizer=lambda: _o.SGD(0.3),
        callbacks=lambda: [keras.callbacks.EarlyStopping("val_loss", 0.3, patience=1, restore_best_weights=True)],
    ),
]


def _largest_error(y: Any, y_pred: Any) -> Any:
    return K.max(K.abs(y - y_pred), axis=-1)
