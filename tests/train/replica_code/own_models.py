# ruff: noqa: B905 - as users write it
"""Models with a `train_step` of their own, as scripts for Keras write them: nothing in them knows of mirrorkit."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

L = keras.layers


class Tracked(keras.Model):
    """Keeps the mean of its losses, and makes an update of all its weights."""

    def __init__(self):
        super().__init__()
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def minimize(self, tape, loss):
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def dense(inputs, *widths, activation="tanh", last=None):
    parts = [keras.Input((inputs,)), *(L.Dense(width, activation=activation) for width in widths[:-1])]
    return keras.Sequential([*parts, L.Dense(widths[-1], activation=last)])


class WGAN(keras.Model):
    """Nested tapes, two optimizers, three updates in a step."""

    def __init__(self):
        super().__init__()
        self.d, self.g = dense(6, 16, 1), dense(3, 16, 6)
        self.d_loss_t, self.g_loss_t = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, d_opt, g_opt):
        super().compile()
        self.d_opt, self.g_opt = d_opt, g_opt

    @property
    def metrics(self):
        return [self.d_loss_t, self.g_loss_t]

    def train_step(self, data):
        real, z = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.g(z, training=True)
                with tf.GradientTape() as inner:
                    mid = 0.5 * (real + fake)
                    inner.watch(mid)
                    p = self.d(mid, training=True)
                norm = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(p, [mid])[0]), axis=1) + 1e-12)
                loss = tf.reduce_mean(self.d(fake, training=True)) - tf.reduce_mean(self.d(real, training=True))
                loss += 10 * tf.reduce_mean((norm - 1) ** 2)
            gradients = tape.gradient(loss, self.d.trainable_variables)
            self.d_opt.apply_gradients(zip(gradients, self.d.trainable_variables))
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(self.d(self.g(z, training=True), training=True))
        gradients = tape.gradient(g_loss, self.g.trainable_variables)
        self.g_opt.apply_gradients(zip(gradients, self.g.trainable_variables))
        self.d_loss_t.update_state(loss)
        self.g_loss_t.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


class VAE(keras.Model):
    """Sums over pixels, means over rows, three trackers; the noise comes with the data."""

    def __init__(self, beta=0.5):
        super().__init__()
        self.encoder, self.decoder, self.beta = dense(6, 16, 4), dense(2, 16, 6), beta
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction, self.kl = keras.metrics.Mean(name="reconstruction"), keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.kl]

    def _losses_of(self, data):
        x, noise = data
        mean, log_var = tf.split(self.encoder(x), 2, axis=-1)
        decoded = self.decoder(mean + tf.exp(0.5 * log_var) * noise[:, :2])
        reconstruction = tf.reduce_mean(tf.reduce_sum((x - decoded) ** 2, axis=1))
        kl = tf.reduce_mean(tf.reduce_sum(-0.5 * (1 + log_var - tf.square(mean) - tf.exp(log_var)), axis=1))
        return reconstruction + self.beta * kl, reconstruction, kl

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self._losses_of(data)
        grads = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        for metric, value in zip(self.metrics, losses):
            metric.update_state(value)
        return {"loss": self.total.result(), "reconstruction": self.reconstruction.result(), "kl": self.kl.result()}

    def test_step(self, data):
        for metric, value in zip(self.metrics, self._losses_of(data)):
            metric.update_state(value)
        return {m.name: m.result() for m in self.metrics}


class Distiller(keras.Model):
    """A frozen teacher, compile's loss and metrics, `compute_loss` overridden, Keras's own `train_step`."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = dense(6, 8, 3), dense(6, 12, 3)
        self.teacher.trainable = False

    def call(self, x, training=None):
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hard = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        soft = tf.nn.softmax(self.teacher(x, training=False) / 3.0)
        return 0.3 * hard + 0.7 * keras.losses.KLDivergence()(soft, tf.nn.softmax(y_pred / 3.0)) * 9.0


class MeanTeacher(keras.Model):
    """Writes its teacher's weights by itself."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = dense(6, 8, 3), dense(6, 8, 3)
        self.teacher.set_weights(self.student.get_weights())
        self.teacher.trainable = False

    def call(self, x):
        return self.teacher(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            out = self.student(x, training=True)
            loss = tf.reduce_mean((out - y) ** 2) + tf.reduce_mean((out - self.teacher(x)) ** 2)
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for slow, fast in zip(self.teacher.weights, self.student.weights):
            slow.assign(0.9 * slow + 0.1 * fast)
        return {"raw": loss}  # of the last batch


class Tracks(VAE):
    """Variables of TensorFlow, which Keras knows nothing of: a counter, and a mean of what it has seen."""

    def __init__(self):
        super().__init__()
        self.seen, self.means = tf.Variable(0.0), {"x": tf.Variable(tf.zeros((6,)))}

    def train_step(self, data):
        x, _ = data
        logs = super().train_step(data)
        self.seen.assign_add(1.0)
        self.means["x"].assign(0.9 * self.means["x"] + 0.1 * tf.reduce_mean(x, axis=0))
        return {**logs, "seen": self.seen}


class Reshapes(keras.Model):
    """Not built, and its call takes other inputs than its step; logs a loss of the last batch by a metric's name."""

    def __init__(self):
        super().__init__()
        self.units, self.head = L.Dense(4, "tanh"), L.Dense(1)

    def call(self, x):
        return self.head(tf.reduce_mean(self.units(tf.ensure_shape(x, (None, 3, 2))), axis=1))

    def train_step(self, data):
        x, y = data
        x = tf.reshape(x, (-1, 3, 2))
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y[:, :1], y_pred=self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        zero = tf.cast(0 * x[0, 0, 0], tf.int32)  # so that TensorFlow does not know the shapes
        gradients = [tf.reshape(gradient, tf.shape(gradient) + zero) for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Synchronized(Tracked):
    """Statistics of all rows, after a loss that a layer adds; keeps tensors in attributes between the updates."""

    def __init__(self):
        super().__init__()
        layers = [L.Dense(8), L.ActivityRegularization(l2=0.1), L.BatchNormalization(synchronized=True), L.Dense(3)]
        self.net = keras.Sequential([keras.Input((6,)), *layers])
        self.scale = self.add_weight(shape=(), initializer="ones")

    def compile(self, optimizer):
        super().compile(optimizer)
        self.of_scale = keras.optimizers.SGD(0.1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            self.error = tf.reduce_mean((self.scale * self.net(x, training=True) - y) ** 2)
            self.added = tf.add_n(self.losses)
            loss = self.error + self.added
        weights = self.net.trainable_variables
        self.of_scale.apply([tape.gradient(loss, self.scale)], [self.scale])
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(self.error)
        return {"loss": self.tracker.result(), "added": self.added, "still": tf.add_n(self.losses)}


class Critic(keras.Model):
    """Its update is in a tf.function of its own, after which it clips its weights; a constraint, an AUC."""

    def __init__(self):
        super().__init__()
        bounded = L.Dense(8, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.7))
        self.net = keras.Sequential([keras.Input((6,)), bounded, L.Dense(3)])
        self.auc, self.tracker = keras.metrics.AUC(name="auc"), keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker, self.auc]

    @tf.function
    def update(self, x, y):
        if tf.reduce_sum(tf.abs(y)) < 0:  # of a tensor, as AutoGraph takes it
            x = -x
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for weight in weights:
            weight.assign(tf.clip_by_value(weight, -0.3, 0.3))
        return loss

    def train_step(self, data):
        x, y = data
        self.tracker.update_state(self.update(x, y))
        self.auc.update_state(tf.cast(y > 0, tf.float32), tf.sigmoid(self.net(x)))
        self.optimizer.learning_rate.assign(0.95 * self.optimizer.learning_rate)
        return {"loss": self.tracker.result(), "auc": self.auc.result(), "rate": self.optimizer.learning_rate}


class InLoops(keras.Model):
    """A metric that is updated row by row, and again: replicas have unequal numbers of rows."""

    def __init__(self):
        super().__init__()
        self.net, self.error = dense(6, 8, 3), keras.metrics.Mean(name="error")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.abs(self.net(x, training=True) - y), axis=-1)
            loss = tf.reduce_mean(errors)
        weights = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.error.update_state(errors)
        tf.map_fn(self._noted, errors)
        return {"error": self.error.result()}

    def _noted(self, error):
        self.error.update_state(tf.reshape(error, [1]), sample_weight=[2.0])
        return error


def made(kind, **compiled):
    """Make a model and compile it with what these functions return."""

    def make():
        model = kind()
        model.compile(**{name: argument() for name, argument in compiled.items()})
        return model

    return make


def adam(**options):
    return lambda: keras.optimizers.Adam(1e-2, **options)


def sgd(rate, **options):
    return lambda: keras.optimizers.SGD(rate, **options)


MODELS = {
    "wgan": made(WGAN, d_opt=adam(beta_1=0.5), g_opt=adam(beta_1=0.5)),
    "vae": made(VAE, optimizer=adam()),
    "distillation": made(
        Distiller,
        optimizer=sgd(0.05, momentum=0.9),
        loss=keras.losses.MeanSquaredError,
        metrics=lambda: ["mae", keras.metrics.RootMeanSquaredError()],
    ),
    "mean_teacher": made(MeanTeacher, optimizer=lambda: keras.optimizers.AdamW(1e-2)),
    "critic": made(Critic, optimizer=adam()),
    "tracks": made(Tracks, optimizer=adam()),
    "reshapes": made(Reshapes, optimizer=sgd(0.1), loss=lambda: "mse"),
    "synchronized": made(Synchronized, optimizer=sgd(0.05)),
    "in_loops": made(InLoops, optimizer=sgd(0.1)),
}


def data(rows=50):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.normal(size=(rows, 3)).astype("float32")
