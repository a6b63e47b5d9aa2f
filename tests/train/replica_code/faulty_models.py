# ruff: noqa: B905 - as users write it
"""Own steps that mean something else on shares of a batch, or cannot run on several replicas, and the errors."""

from __future__ import annotations

import keras
import tensorflow as tf
from own_models import VAE, WGAN, Tracked, dense

import mirrorkit as mk


class Base(Tracked):
    """A net, its loss by `objective`, and an update; subclasses get one thing wrong."""

    def __init__(self):
        super().__init__()
        self.net = dense(6, 8, 3)

    def call(self, x):
        return self.net(x)

    def objective(self, x, y):
        return tf.reduce_mean((self.net(x) - y) ** 2)

    def changed(self, gradients):
        return gradients

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.objective(x, y)
        gradients = self.changed(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class SumOfRows(Base):
    def objective(self, x, y):
        return tf.reduce_sum((self.net(x) - y) ** 2)


class SumsTwice(SumOfRows):
    """In two updates."""

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


class SmallSumOfRows(Base):
    """Of a few rows 1e-4 of the gradient, of 256 a hundredth."""

    def objective(self, x, y):
        errors = (self.net(x) - y) ** 2
        return tf.reduce_mean(errors) + 1e-5 * tf.reduce_sum(errors)


class Gathers(Base):
    def objective(self, x, y):
        return tf.reduce_mean((self.net(x) - tf.reduce_mean(mk.train.all_gather(y), axis=0)) ** 2)


class CodeBookOfSums(Base):
    def __init__(self):
        super().__init__()
        self.counts = self.add_weight(shape=(3,), initializer="ones", trainable=False, name="counts")

    def train_step(self, data):
        _, y = data
        self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(tf.one_hot(tf.argmax(y, 1), 3), axis=0))
        return super().train_step(data)


class SumInTheTracker(Base):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "errors": tf.reduce_sum(tf.abs(data[1]))}


class OnlyWhereItIsBad(Base):
    """Trains from a threshold on; the first five rows are below it, and so are their shares."""

    def changed(self, gradients):
        return [gradient * tf.cast(self.batch_loss > 1.2, tf.float32) for gradient in gradients]

    def objective(self, x, y):
        self.batch_loss = super().objective(x, y)
        return self.batch_loss


class ConstantBatchSize(Base):
    def train_step(self, data):
        x, y = data
        return super().train_step((x + 0.1 * tf.random.normal((16, 6)), y))


class AppliesInACond(Base):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.objective(x, y)
        gradients = tape.gradient(loss, self.trainable_variables)

        def apply():
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return 0

        tf.cond(loss > 0.0, apply, lambda: 0)
        return {"loss": loss}


class Counts(Base):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def train_step(self, data):
        self.seen += 1
        return super().train_step(data)


class Appends(Base):
    def __init__(self):
        super().__init__()
        self.losses_seen = []

    def train_step(self, data):
        logs = super().train_step(data)
        self.losses_seen.append(logs["loss"])
        return logs


class DrawsFromAState(Base):
    def train_step(self, data):
        x, y = data
        return super().train_step((x + tf.random.stateless_normal(tf.shape(x), [1, 2]) + tf.random.gamma([], 1.0), y))


class WritesAVariableThatIsNowhere(Base):
    def __init__(self):
        super().__init__()
        seen = tf.Variable(0.0, trainable=False)
        self.count = lambda: seen.assign_add(1.0)

    def train_step(self, data):
        self.count()
        return super().train_step(data)


class ReadsAgain(Base):
    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(0.0)

    def objective(self, x, y):
        self.mean.assign(0.99 * self.mean + 0.01 * tf.reduce_mean(y))
        return super().objective(x, y - self.mean)


class InSixteenBits(Base):
    def __init__(self):
        super().__init__()
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="mixed_float16")])
        self.net = keras.Sequential([net, keras.layers.Activation("linear", dtype="float32")])

    def compile(self, optimizer):
        super().compile(keras.optimizers.LossScaleOptimizer(optimizer))


class Accumulates(Base):
    def compile(self, optimizer):
        super().compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


class KeepsAStateOfRows(Base):
    def __init__(self):
        super().__init__()
        inputs = keras.Input((2, 3), batch_size=16)
        lstm = keras.layers.LSTM(3, stateful=True, name="rows")(inputs)
        self.net = keras.Model(inputs, lstm)

    def train_step(self, data):
        x, y = data
        return super().train_step((tf.reshape(x, (-1, 2, 3)), y))


class LogsNothing(Base):
    def train_step(self, data):
        super().train_step(data)


class RepeatsNoise(Base):
    """Noise of rows from a seed that every replica has."""

    def objective(self, x, y):
        at = [tf.cast(self.optimizer.iterations, tf.int32), 7]
        return super().objective(x + tf.random.stateless_normal(tf.shape(x), at), y)


def compiled(kind):
    model = kind()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return model


_ROWS = r"train_step of {} does not mean the same on shares of a batch: "

FAULTY = {
    RepeatsNoise: _ROWS + "it gives its update 1 gradients.*draw",
    SumOfRows: _ROWS + "it gives its update 1 gradients",
    SumsTwice: _ROWS + "it gives its update 1 gradients",
    SmallSumOfRows: _ROWS + "it gives its update 1 gradients",
    OnlyWhereItIsBad: _ROWS + "it gives its update 1 gradients",
    CodeBookOfSums: _ROWS + "it leaves '.*counts' at",
    SumInTheTracker: _ROWS + "it logs 'errors' as",
    ConstantBatchSize: "train_step of {} cannot be run on .* rows and on shares .*constant batch size",
    AppliesInACond: "SGD.apply is called within a tf.cond",
    Counts: r"train_step of {} changes the Python attributes \['seen'\]",
    Appends: r"train_step of {} changes the Python attributes \['losses_seen'\]",
    DrawsFromAState: "draws random numbers with TensorFlow's RandomGamma",
    WritesAVariableThatIsNowhere: "writes the variable '.*', which is not part of the model",
    ReadsAgain: r"writes the tf.Variable 'reads_again\.mean' and reads it again.*self\.add_weight",
    Gathers: r"mk\.train\.all_gather was called in a step that computes on each shard",
    InSixteenBits: "InSixteenBits takes the gradient of a loss that it did not scale",
    Accumulates: r"SGD\(gradient_accumulation_steps=2\) is not supported in a Step",
    KeepsAStateOfRows: "The layer 'rows' has stateful=True",
    LogsNothing: "train_step must return its logs",
}


class DrawsNoise(VAE):
    """Right: a draw for each row."""

    def train_step(self, data):
        x, _ = data
        return super().train_step((x, tf.random.normal((tf.shape(x)[0], 3))))


class DropsAndNormalizes(Base):
    """Right: BatchNormalization, Dropout and a seed generator."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization()])
        self.net.add(keras.layers.Dropout(0.3))
        self.net.add(keras.layers.Dense(3))
        self.seeds = keras.random.SeedGenerator(3)

    def objective(self, x, y):
        x += 0.1 * keras.random.normal(tf.shape(x), seed=self.seeds)
        return tf.reduce_mean((self.net(x, training=True) - y) ** 2)


class Mixes(Base):
    """Right: one number drawn for the whole batch, as a share is mixed with itself."""

    def objective(self, x, y):
        part = tf.random.uniform(())
        return tf.reduce_mean((self.net(part * x) - part * y) ** 2)


class Penalty(WGAN):
    """Right: a point between for each row."""

    def train_step(self, data):
        real, z = data
        between = tf.random.uniform((tf.shape(real)[0], 1))
        return super().train_step((between * real, z))


class NoisyGradients(Base):
    """Right: the same noise on every replica, in the shape of the weights."""

    def changed(self, gradients):
        at = [tf.cast(self.optimizer.iterations, tf.int32), 7]
        return [g + 0.1 * tf.random.stateless_normal(g.shape, at) for g in gradients]


RIGHT = [NoisyGradients, DrawsNoise, DropsAndNormalizes, Mixes, Penalty]
