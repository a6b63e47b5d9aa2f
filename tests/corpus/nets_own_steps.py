"""What has a `train_step` or a training loop of its own in Keras."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from entries import EPOCHS, Rows, Script, Trained, batched, dense, net, recipe, split
from nets_dense import classes, itself, regression

import mirrorkit as mk
from mirrorkit._keras import keras

L, _o = keras.layers, keras.optimizers


class OwnStep(keras.Model):
    """A model with a `train_step`; its losses are `values`, one for each example."""

    names: ClassVar = ("loss",)

    def __init__(self, *nets: Any) -> None:
        super().__init__()
        self.nets = list(nets)
        self.trackers = [keras.metrics.Mean(name=name) for name in self.names]
        self.built = True

    @property
    def metrics(self) -> Any:
        return self.trackers

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            values = self.values(data, training=True)
            loss = tf.reduce_mean(values["loss"])
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.track(values)

    def test_step(self, data: Any) -> Any:
        return self.track(self.values(data, training=False))

    def track(self, values: Any) -> Any:
        for tracker in self.trackers:
            tracker.update_state(values[tracker.name])
        return {tracker.name: tracker.result() for tracker in self.trackers}


def with_noise(rng: np.random.Generator, count: int) -> Rows:
    x, _ = itself(rng, count)
    return x, rng.normal(size=(count, 2)).astype("float32")


def vae_nets() -> Any:
    return net(dense(6, "tanh"), dense(4), shape=(8,))(), net(dense(6, "tanh"), dense(8), shape=(2,))()


class VAE(OwnStep):
    names = ("loss", "divergence")

    def values(self, data: Any, training: bool) -> Any:
        encoder, decoder = self.nets
        x, noise = data
        mean, log_variance = tf.split(encoder(x), 2, axis=1)
        codes = mean + tf.exp(log_variance / 2) * noise
        distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
        divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)
        return {"loss": distance + divergence, "divergence": divergence}


def vae_before(train: Rows, test: Rows) -> Trained:
    encoder, decoder = vae_nets()
    model = VAE(encoder, decoder)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    predictions = decoder.predict(encoder.predict(test[0], verbose=0)[:, :2], verbose=0)
    return Trained([encoder, decoder], [model.optimizer], fitted.history, predictions)


def vae_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        encoder, decoder = vae_nets()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        x, noise = batch
        mean, log_variance = tf.split(encoder(x), 2, axis=1)
        codes = mean + tf.exp(log_variance / 2) * noise
        distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
        divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)
        return {"loss": distance + divergence, "divergence": divergence}

    def predict(batch: Any) -> Any:
        return decoder(encoder(batch[0])[:, :2])

    step = mk.train.Step.from_loss([encoder, decoder], optimizer, loss_fn, predict=predict)
    loop = mk.train.Loop(strategy, step)
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    return Trained([encoder, decoder], [optimizer], fitted.history, loop.predict(recipe(test)))


class DrawnVAE(OwnStep):
    def values(self, data: Any, training: bool) -> Any:
        encoder, decoder, noise = *self.nets, self.noise
        (x,) = data
        mean, log_variance = tf.split(encoder(x), 2, axis=1)
        codes = mean + tf.exp(log_variance / 2) * keras.random.normal(tf.shape(mean), seed=noise)
        distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
        return {"loss": distance - 0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)}


def drawn_before(train: Rows, test: Rows) -> Trained:
    encoder, decoder = vae_nets()
    model = DrawnVAE(encoder, decoder)
    model.noise = keras.random.SeedGenerator(1)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    predictions = decoder.predict(encoder.predict(test[0], verbose=0)[:, :2], verbose=0)
    return Trained([encoder, decoder], [model.optimizer], fitted.history, predictions)


def drawn_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        encoder, decoder = vae_nets()
        noise = keras.random.SeedGenerator(1)
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        (x,) = batch
        mean, log_variance = tf.split(encoder(x), 2, axis=1)
        codes = mean + tf.exp(log_variance / 2) * keras.random.normal(tf.shape(mean), seed=noise)
        distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
        return distance - 0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)

    def predict(batch: Any) -> Any:
        return decoder(encoder(batch[0])[:, :2])

    step = mk.train.Step.from_loss([encoder, decoder, noise], optimizer, loss_fn, predict=predict)
    loop = mk.train.Loop(strategy, step)
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    return Trained([encoder, decoder], [optimizer], fitted.history, loop.predict(recipe(test)))


def drawn_by_shards(train: Rows, test: Rows, shards: int, reordered: bool) -> Trained:
    """In plain TensorFlow: one device computes the shards in turn, each with the seed of its step and its number."""
    encoder, decoder = vae_nets()
    model, optimizer = DrawnVAE(encoder, decoder), _o.Adam(0.01)
    model.noise = keras.random.SeedGenerator(1)
    seed, variables = tf.constant(model.noise.state.numpy()), model.trainable_variables
    optimizer.build(variables)
    history = []
    for _ in range(EPOCHS):
        total = 0.0
        for (x,) in batched(train):
            share, found = -(-len(x) // shards), []
            for number in range(shards):
                own = seed
                for part in (optimizer.iterations.value, number, 0):
                    own = tf.random.experimental.stateless_fold_in(own, tf.cast(part, tf.int64))
                model.noise.state.assign(own)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(model.values((x[number * share : (number + 1) * share],), True)["loss"])
                found.append(tape.gradient(loss, [v.value for v in variables]))
                total += float(loss)
            found = found[::-1] if reordered else found
            weight = 1 / len(x) if reordered else 1.0  # divided before instead of after
            sums = [tf.add_n([g * weight for g in each]) for each in zip(*found, strict=True)]
            optimizer.apply([g if reordered else g / len(x) for g in sums], variables)
        history.append(total / len(train[0]))
    return Trained([encoder, decoder], [optimizer], {"loss": history}, decoder(encoder(test[0])[:, :2]))


def two_views(rng: np.random.Generator, count: int) -> Rows:
    """Two vectors, and whether they are views of one thing."""
    a, b = (rng.normal(size=(count, 4)).astype("float32") for _ in range(2))
    same = rng.integers(0, 2, count).astype("float32")
    return a, np.where(same[:, None] > 0, a + 0.3 * b, b).astype("float32"), same


def embedding_net() -> Any:
    return net(dense(8, "tanh"), dense(3))()


class Siamese(OwnStep):
    names = ("loss", "distance")

    def values(self, data: Any, training: bool) -> Any:
        a, b, same = data
        squares = tf.reduce_sum((self.nets[0](a) - self.nets[0](b)) ** 2, axis=1)
        distance = tf.sqrt(squares + 1e-6)
        loss = same * squares + (1 - same) * tf.nn.relu(2 - distance) ** 2
        return {"loss": loss, "distance": distance}


def siamese_before(train: Rows, test: Rows) -> Trained:
    encoder = embedding_net()
    model = Siamese(encoder)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([encoder], [model.optimizer], fitted.history, encoder.predict(test[0], verbose=0))


def siamese_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        encoder = embedding_net()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        a, b, same = batch
        squares = tf.reduce_sum((encoder(a) - encoder(b)) ** 2, axis=1)
        distance = tf.sqrt(squares + 1e-6)
        loss = same * squares + (1 - same) * tf.nn.relu(2 - distance) ** 2
        return {"loss": loss, "distance": distance}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(encoder, optimizer, loss_fn))
    train_data, test_data = batched(train), batched(test)
    fitted = loop.fit(train_data, epochs=EPOCHS, validation_data=test_data, verbose=0)
    return Trained([encoder], [optimizer], fitted.history, loop.predict(test_data))


def triplets(rng: np.random.Generator, count: int) -> Rows:
    anchor, other, noise = (rng.normal(size=(count, 4)).astype("float32") for _ in range(3))
    return {"anchor": anchor, "positive": anchor + 0.2 * noise, "negative": other}, np.zeros(count, "int64")


class Triplet(OwnStep):
    def values(self, data: Any, training: bool) -> Any:
        anchor, positive, negative = (self.nets[0](data[0][name]) for name in ("anchor", "positive", "negative"))
        near, far = tf.reduce_sum((anchor - positive) ** 2, 1), tf.reduce_sum((anchor - negative) ** 2, 1)
        return {"loss": tf.nn.softplus(near - far + 0.5)}


def triplet_before(train: Rows, test: Rows) -> Trained:
    encoder = embedding_net()
    model = Triplet(encoder)
    model.compile(_o.SGD(0.05), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([encoder], [model.optimizer], fitted.history, encoder.predict(test[0]["anchor"], verbose=0))


def triplet_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        encoder = embedding_net()
        optimizer = _o.SGD(0.05)

    def loss_fn(batch: Any) -> Any:
        anchor, positive, negative = (encoder(batch[0][name]) for name in ("anchor", "positive", "negative"))
        near, far = tf.reduce_sum((anchor - positive) ** 2, 1), tf.reduce_sum((anchor - negative) ** 2, 1)
        return tf.nn.softplus(near - far + 0.5)

    step = mk.train.Step.from_loss(encoder, optimizer, loss_fn, predict=lambda batch: encoder(batch[0]["anchor"]))
    loop = mk.train.Loop(strategy, step)
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    return Trained([encoder], [optimizer], fitted.history, loop.predict(recipe(test)))


def student_and_teacher() -> Any:
    student = net(dense(4, "tanh"), lambda: L.BatchNormalization(momentum=0.8, synchronized=True), dense(3))()
    teacher = net(dense(8, "tanh"), L.BatchNormalization, dense(3))()
    teacher.trainable = False
    return student, teacher


class Distiller(OwnStep):
    names = ("loss", "hard")

    def values(self, data: Any, training: bool) -> Any:
        student, teacher = self.nets
        x, y = data
        outputs, wanted = student(x, training=training), teacher(x, training=False)
        hard = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        soft = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(wanted / 2), outputs / 2)
        return {"loss": 0.3 * hard + 4 * soft, "hard": hard}


def distiller_before(train: Rows, test: Rows) -> Trained:
    student, teacher = student_and_teacher()
    model = Distiller(student, teacher)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([student, teacher], [model.optimizer], fitted.history, student.predict(test[0], verbose=0))


def distiller_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        student, teacher = student_and_teacher()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any, training: bool) -> Any:
        x, y = batch
        outputs, wanted = student(x, training=training), teacher(x, training=False)
        hard = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        soft = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(wanted / 2), outputs / 2)
        return {"loss": 0.3 * hard + 4 * soft, "hard": hard}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss([student, teacher], optimizer, loss_fn))
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    return Trained([student, teacher], [optimizer], fitted.history, loop.predict(recipe(test)))


def diffused(rng: np.random.Generator, count: int) -> Rows:
    """Pictures, the noise for each, and how far it is mixed in; fixed, so that both scripts see the same."""
    x, _ = itself(rng, count)
    return x, rng.normal(size=x.shape).astype("float32"), rng.uniform(0, 1, (count, 1)).astype("float32")


def noise_net() -> Any:
    x, time = keras.Input((8,)), keras.Input((1,))
    hidden = L.Dense(12, "silu")(L.Concatenate()([x, L.Dense(4, "silu")(time)]))
    return keras.Model([x, time], L.Dense(8)(hidden))


class Diffusion(OwnStep):
    def values(self, data: Any, training: bool) -> Any:
        x, noise, time = data
        mixed = tf.cos(time * np.pi / 2) * x + tf.sin(time * np.pi / 2) * noise
        error = self.nets[0]([mixed, time]) - noise
        return {"loss": tf.reduce_mean(error**2, axis=1)}


def diffusion_before(train: Rows, test: Rows) -> Trained:
    denoiser = noise_net()
    model = Diffusion(denoiser)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([denoiser], [model.optimizer], fitted.history, denoiser.predict([test[0], test[2]], verbose=0))


def diffusion_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        denoiser = noise_net()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        x, noise, time = batch
        mixed = tf.cos(time * np.pi / 2) * x + tf.sin(time * np.pi / 2) * noise
        error = denoiser([mixed, time]) - noise
        return tf.reduce_mean(error**2, axis=1)

    step = mk.train.Step.from_loss(denoiser, optimizer, loss_fn, predict=lambda batch: denoiser([batch[0], batch[2]]))
    loop = mk.train.Loop(strategy, step)
    train_data, test_data = batched(train), batched(test)
    fitted = loop.fit(train_data, epochs=EPOCHS, validation_data=test_data, verbose=0)
    return Trained([denoiser], [optimizer], fitted.history, loop.predict(test_data))


def real_and_fake(rng: np.random.Generator, count: int) -> Rows:
    real, _ = itself(rng, count)
    return real, rng.normal(size=real.shape).astype("float32"), rng.uniform(0, 1, (count, 1)).astype("float32")


def critic_net() -> Any:
    return net(dense(8, "tanh"), dense(1), shape=(8,))()


class Critic(OwnStep):
    names = ("loss", "penalty")

    def values(self, data: Any, training: bool) -> Any:
        critic = self.nets[0]
        real, fake, part = data
        mixed = part * real + (1 - part) * fake
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            judged = critic(mixed)
        norm = tf.sqrt(tf.reduce_sum(tape.gradient(judged, mixed) ** 2, axis=1) + 1e-6)
        penalty = 10 * (norm - 1) ** 2
        return {"loss": (critic(fake) - critic(real))[:, 0] + penalty, "penalty": penalty}


def critic_before(train: Rows, test: Rows) -> Trained:
    critic = critic_net()
    model = Critic(critic)
    model.compile(_o.Adam(0.005), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([critic], [model.optimizer], fitted.history, critic.predict(test[0], verbose=0))


def critic_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        critic = critic_net()
        optimizer = _o.Adam(0.005)

    def loss_fn(batch: Any) -> Any:
        real, fake, part = batch
        mixed = part * real + (1 - part) * fake
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            judged = critic(mixed)
        norm = tf.sqrt(tf.reduce_sum(tape.gradient(judged, mixed) ** 2, axis=1) + 1e-6)
        penalty = 10 * (norm - 1) ** 2
        return {"loss": (critic(fake) - critic(real))[:, 0] + penalty, "penalty": penalty}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(critic, optimizer, loss_fn))
    train_data, test_data = batched(train), batched(test)
    fitted = loop.fit(train_data, epochs=EPOCHS, validation_data=test_data, verbose=0)
    return Trained([critic], [optimizer], fitted.history, loop.predict(test_data))


def plays(rng: np.random.Generator, count: int) -> Rows:
    """States, actions and returns that were recorded."""
    state = rng.normal(size=(count, 4)).astype("float32")
    action = rng.integers(0, 3, count)
    return state, action, (state[np.arange(count), action] + 0.1 * rng.normal(size=count)).astype("float32")


def policy_net() -> Any:
    return net(dense(8, "tanh"), dense(3))()


class Reinforce(OwnStep):
    names = ("loss", "entropy")

    def values(self, data: Any, training: bool) -> Any:
        state, action, gain = data
        chances = tf.nn.log_softmax(self.nets[0](state))
        entropy = -tf.reduce_sum(tf.exp(chances) * chances, axis=1)
        taken = tf.gather(chances, action, batch_dims=1)
        return {"loss": -gain * taken - 0.01 * entropy, "entropy": entropy}


def reinforce_before(train: Rows, test: Rows) -> Trained:
    actor = policy_net()
    model = Reinforce(actor)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([actor], [model.optimizer], fitted.history, actor.predict(test[0], verbose=0))


def reinforce_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        actor = policy_net()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        state, action, gain = batch
        chances = tf.nn.log_softmax(actor(state))
        entropy = -tf.reduce_sum(tf.exp(chances) * chances, axis=1)
        taken = tf.gather(chances, action, batch_dims=1)
        return {"loss": -gain * taken - 0.01 * entropy, "entropy": entropy}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(actor, optimizer, loss_fn))
    train_data, test_data = batched(train), batched(test)
    fitted = loop.fit(train_data, epochs=EPOCHS, validation_data=test_data, verbose=0)
    return Trained([actor], [optimizer], fitted.history, loop.predict(test_data))


def loop_before(train: Rows, test: Rows) -> Trained:
    model = net(dense(6, "tanh"), dense(1))()
    optimizer = _o.Adam(0.02)
    loss = keras.losses.MeanSquaredError(reduction=None)

    @tf.function
    def train_step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            values = loss(y, model(x, training=True))
            mean = tf.reduce_mean(values)
        optimizer.apply(tape.gradient(mean, model.trainable_variables), model.trainable_variables)
        return tf.reduce_sum(values)

    optimizer.build(model.trainable_variables)
    losses = []
    for _ in range(EPOCHS):
        losses.append(sum(float(train_step(batch)) for batch in batched(train)) / len(train[0]))
    return Trained([model], [optimizer], {"loss": losses}, model(test[0]))


def loop_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        model = net(dense(6, "tanh"), dense(1))()
        optimizer = _o.Adam(0.02)
    step = mk.train.Step(model, optimizer, loss="mse")
    step.build(strategy)

    @tf.function
    def train_step(batch: Any) -> Any:
        sums = strategy.run(step.compute, args=(batch,))
        return step.update(strategy, sums)

    losses = []
    for epoch in range(EPOCHS):
        counts = [len(part) for part in np.split(train[0], range(16, len(train[0]), 16))]
        batches = mk.data.distribute(recipe(train), strategy, epoch=epoch)
        logs = [float(train_step(batch)["loss"]) for batch in batches]
        losses.append(float(np.average(logs, weights=counts)))
    return Trained([model], [optimizer], {"loss": losses}, model(test[0]))


def gan_nets() -> Any:
    return net(dense(6, "tanh"), dense(8), shape=(2,))(), net(dense(6, "tanh"), dense(1), shape=(8,))()


def gan_before(train: Rows, test: Rows) -> Trained:
    painter, judge = gan_nets()
    painter_optimizer, judge_optimizer = _o.Adam(0.01), _o.Adam(0.02)
    painter_optimizer.build(painter.trainable_variables)
    judge_optimizer.build(judge.trainable_variables)

    def of_judge(batch: Any) -> Any:
        x, noise = batch
        return tf.nn.softplus(-judge(x))[:, 0] + tf.nn.softplus(judge(painter(noise)))[:, 0]

    def of_painter(batch: Any) -> Any:
        return tf.nn.softplus(-judge(painter(batch[1])))[:, 0]

    @tf.function
    def train_step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            judged = of_judge(batch)
            loss = tf.reduce_mean(judged)
        judge_optimizer.apply(tape.gradient(loss, judge.trainable_variables), judge.trainable_variables)
        with tf.GradientTape() as tape:
            painted = of_painter(batch)
            loss = tf.reduce_mean(painted)
        painter_optimizer.apply(tape.gradient(loss, painter.trainable_variables), painter.trainable_variables)
        return tf.reduce_sum(judged), tf.reduce_sum(painted)

    history: dict[str, list[float]] = {"judge": [], "painter": [], "val_judge": []}
    for _ in range(EPOCHS):
        sums = np.sum([[float(value) for value in train_step(batch)] for batch in batched(train)], axis=0)
        history["judge"].append(sums[0] / len(train[0]))
        history["painter"].append(sums[1] / len(train[0]))
        history["val_judge"].append(float(tf.reduce_mean(of_judge(test))))
    return Trained([painter, judge], [painter_optimizer, judge_optimizer], history, painter.predict(test[1], verbose=0))


class Gan:
    """Two updates for each batch: the judge's, then the painter's against the new judge."""

    def __init__(self) -> None:
        self.painter, self.judge = gan_nets()
        self.painter_optimizer, self.judge_optimizer = _o.Adam(0.01), _o.Adam(0.02)
        nets = [self.judge, self.painter]
        self.halves = {
            "judge": mk.train.Step.from_loss(nets, self.judge_optimizer, self.of_judge, frozen=self.painter),
            "painter": mk.train.Step.from_loss(nets, self.painter_optimizer, self.of_painter, frozen=self.judge),
        }

    def of_judge(self, batch: Any) -> Any:
        x, noise = batch
        return tf.nn.softplus(-self.judge(x))[:, 0] + tf.nn.softplus(self.judge(self.painter(noise)))[:, 0]

    def of_painter(self, batch: Any) -> Any:
        return tf.nn.softplus(-self.judge(self.painter(batch[1])))[:, 0]

    @property
    def variables(self) -> list[Any]:
        return list({id(v): v for half in self.halves.values() for v in half.variables}.values())

    def build(self, strategy: Any) -> None:
        for half in self.halves.values():
            half.build(strategy)

    def train(self, strategy: Any, batch: Any) -> Any:
        logs = {}
        for name, half in self.halves.items():
            logs[name] = half.update(strategy, strategy.run(half.compute, args=(batch,)))["loss"]
        return logs

    def test(self, batch: Any) -> Any:
        return {"judge": self.of_judge(batch)}

    def predict(self, batch: Any) -> Any:
        return self.painter(batch[1])


def gan_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        gan = Gan()
    loop = mk.train.Loop(strategy, gan)
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    optimizers = [gan.painter_optimizer, gan.judge_optimizer]
    return Trained([gan.painter, gan.judge], optimizers, fitted.history, loop.predict(recipe(test)))


def two_crops(rng: np.random.Generator, count: int) -> Rows:
    x, noise = (rng.normal(size=(count, 4)).astype("float32") for _ in range(2))
    return x + 0.2 * noise, x - 0.2 * noise


class SimCLR(OwnStep):
    def values(self, data: Any, training: bool) -> Any:
        encoder = self.nets[0]
        first, second = (tf.math.l2_normalize(encoder(crops), 1) for crops in data)
        every = tf.concat([first, second], axis=0)
        same = 5 * tf.reduce_sum(first * second, axis=1)
        totals = [tf.reduce_sum(tf.exp(5 * own @ tf.transpose(every)), 1) - tf.exp(5.0) for own in (first, second)]
        return {"loss": (tf.math.log(totals[0]) + tf.math.log(totals[1])) / 2 - same}


def simclr_before(train: Rows, test: Rows) -> Trained:
    encoder = embedding_net()
    model = SimCLR(encoder)
    model.compile(_o.Adam(0.01), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([encoder], [model.optimizer], fitted.history, encoder.predict(test[0], verbose=0))


def simclr_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        encoder = embedding_net()
        optimizer = _o.Adam(0.01)

    def loss_fn(batch: Any) -> Any:
        first, second = (tf.math.l2_normalize(encoder(crops), 1) for crops in batch)
        every = tf.concat(mk.train.all_gather([first, second]), axis=0)
        same = 5 * tf.reduce_sum(first * second, axis=1)
        totals = [tf.reduce_sum(tf.exp(5 * own @ tf.transpose(every)), 1) - tf.exp(5.0) for own in (first, second)]
        return (tf.math.log(totals[0]) + tf.math.log(totals[1])) / 2 - same

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(encoder, optimizer, loss_fn, whole_batch=True))
    fitted = loop.fit(recipe(train), epochs=EPOCHS, validation_data=recipe(test), verbose=0)
    return Trained([encoder], [optimizer], fitted.history, loop.predict(recipe(test)))


def bought(rng: np.random.Generator, count: int) -> Rows:
    """A user and what was bought; the others' purchases of the batch are the negatives."""
    user = rng.integers(0, 10, (count, 1))
    return user, (user + rng.integers(0, 3, (count, 1))) % 14


def towers() -> Any:
    return [
        net(lambda n=n: L.Embedding(n, 4), L.Flatten, dense(4), shape=(1,), dtype="int64")()
        for n in (10, 14)
    ]  # fmt: skip


class TwoTowers(OwnStep):
    names = ("loss", "top3")

    def values(self, data: Any, training: bool) -> Any:
        users, items = self.nets
        query, candidates = users(data[0]), items(data[1])
        scores = query @ tf.transpose(candidates)
        own = tf.reduce_sum(query * candidates, axis=1)
        better = tf.reduce_sum(tf.cast(scores > own[:, None] + 1e-4, tf.float32), axis=1)
        return {"loss": tf.reduce_logsumexp(scores, axis=1) - own, "top3": tf.cast(better < 3, tf.float32)}


def towers_before(train: Rows, test: Rows) -> Trained:
    users, items = towers()
    model = TwoTowers(users, items)
    model.compile(_o.SGD(0.3), jit_compile=False)
    fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([users, items], [model.optimizer], fitted.history, users.predict(test[0], verbose=0))


def towers_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    with strategy.scope():
        users, items = towers()
        optimizer = _o.SGD(0.3)

    def loss_fn(batch: Any) -> Any:
        query, candidates = users(batch[0]), items(batch[1])
        scores = query @ tf.transpose(mk.train.all_gather(candidates))
        own = tf.reduce_sum(query * candidates, axis=1)
        better = tf.reduce_sum(tf.cast(scores > own[:, None] + 1e-4, tf.float32), axis=1)
        return {"loss": tf.reduce_logsumexp(scores, axis=1) - own, "top3": tf.cast(better < 3, tf.float32)}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss([users, items], optimizer, loss_fn, whole_batch=True))
    train_data, test_data = batched(train), batched(test)
    fitted = loop.fit(train_data, epochs=EPOCHS, validation_data=test_data, verbose=0)
    return Trained([users, items], [optimizer], fitted.history, loop.predict(test_data))


def _own(name: str, make: Any, model: Any, before: Any, after: Any) -> Script:
    return Script(name=name, data=split(make), before=before, after=after, parts=([OwnStep, model], []))


def as_it_is(strategy: Any, train: Rows, test: Rows) -> Trained:
    """The first thing that one tries: the model with its train_step."""
    with strategy.scope():
        encoder = embedding_net()
        model = Siamese(encoder)
        model.compile(_o.Adam(0.01), jit_compile=False)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    fitted = loop.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
    return Trained([encoder], [model.optimizer], fitted.history, np.asarray(encoder(test[0])))


ENTRIES = [
    _own("VAE, its noise in the data", with_noise, VAE, vae_before, vae_after),
    Script(
        name="VAE, its noise drawn",
        data=lambda: tuple((x,) for x, _ in split(itself)()),
        before=drawn_before,
        after=drawn_after,
        parts=([OwnStep, DrawnVAE], []),
        by_shards=drawn_by_shards,
        draws=True,
    ),
    _own("siamese net, contrastive pairs", two_views, Siamese, siamese_before, siamese_after),
    _own("triplets in the data", triplets, Triplet, triplet_before, triplet_after),
    _own(
        "distillation, a frozen teacher, synchronized BatchNorm", classes, Distiller, distiller_before, distiller_after
    ),
    _own("diffusion, noise and times in the data", diffused, Diffusion, diffusion_before, diffusion_after),
    _own("Wasserstein critic with gradient penalty", real_and_fake, Critic, critic_before, critic_after),
    _own("policy gradient on recorded plays", plays, Reinforce, reinforce_before, reinforce_after),
    Script(name="a training loop by hand", data=split(regression), before=loop_before, after=loop_after),
    Script(name="GAN", data=split(with_noise), before=gan_before, after=gan_after, parts=([], [Gan])),
    Script(name="train_step overridden, as it is", data=split(two_views), before=siamese_before, after=as_it_is),
]
if hasattr(mk.train, "all_gather"):
    ENTRIES += [
        _own("SimCLR: all pairs of the global batch", two_crops, SimCLR, simclr_before, simclr_after),
        _own("two towers, the batch as negatives", bought, TwoTowers, towers_before, towers_after),
    ]
