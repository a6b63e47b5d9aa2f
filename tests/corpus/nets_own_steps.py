"""What has a `train_step` or a training loop of its own in Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from entries import EPOCHS, Make, Rows, Script, Trained, batched, dense, net, recipe, split
from nets_dense import classes, itself, regression

import mirrorkit as mk
from mirrorkit._keras import keras

L, _o = keras.layers, keras.optimizers
Values = Callable[..., dict[str, Any]]  # (nets, batch, training): "loss" and other logs, a value for each example


class OwnStep(keras.Model):
    """A model with a `train_step`, whose losses are `values`."""

    def __init__(self, values: Values, names: Sequence[str], nets: Sequence[Any]) -> None:
        super().__init__()
        self.values, self.nets = values, list(nets)
        self.trackers = [keras.metrics.Mean(name=name) for name in names]
        self.built = True

    @property
    def metrics(self) -> Any:
        return self.trackers

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            values = self.values(self.nets, data, True)
            loss = tf.reduce_mean(values["loss"])
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.track(values)

    def test_step(self, data: Any) -> Any:
        return self.track(self.values(self.nets, data, False))

    def track(self, values: Any) -> Any:
        for tracker in self.trackers:
            tracker.update_state(values[tracker.name])
        return {tracker.name: tracker.result() for tracker in self.trackers}


def first_net(nets: Any, batch: Any) -> Any:
    return nets[0](batch[0])


def own(
    name: str,
    data: Callable[[], tuple[Rows, Rows]],
    nets: Callable[[], Sequence[Any]],
    values: Values,
    optimizer: Make = lambda: _o.Adam(0.01),
    *,
    names: Sequence[str] = ("loss",),
    predict: Callable[[Any, Any], Any] = first_net,
    whole_batch: bool = False,
    as_data: Callable[[Rows], Any] = recipe,
    as_it_is: bool = False,
    **options: Any,
) -> Script:
    """A model with a `train_step`, and `Step.from_loss` of the same nets and values; or the model `as_it_is`."""

    def before(train: Rows, test: Rows) -> Trained:
        made = nets()
        model = OwnStep(values, names, made)
        model.compile(optimizer(), jit_compile=False)
        fitted = model.fit(batched(train), epochs=EPOCHS, validation_data=batched(test), verbose=0)
        return Trained(models_of(made), [model.optimizer], fitted.history, predict(made, test))

    def after(strategy: Any, train: Rows, test: Rows) -> Trained:
        with strategy.scope():
            made, of_made = nets(), optimizer()

        def loss_fn(batch: Any, training: bool) -> Any:
            return values(made, batch, training, **({"gather": mk.train.all_gather} if whole_batch else {}))

        more = {"predict": lambda batch: predict(made, batch), "whole_batch": whole_batch}
        loop = mk.train.Loop(strategy, mk.train.Step.from_loss(made, of_made, loss_fn, **more))
        fitted = loop.fit(as_data(train), epochs=EPOCHS, validation_data=as_data(test), verbose=0)
        return Trained(models_of(made), [of_made], fitted.history, loop.predict(as_data(test)))

    def unchanged(strategy: Any, train: Rows, test: Rows) -> Trained:
        """The first thing that one tries."""
        with strategy.scope():
            made = nets()
            model = OwnStep(values, names, made)
            model.compile(optimizer(), jit_compile=False)
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        fitted = loop.fit(as_data(train), epochs=EPOCHS, validation_data=as_data(test), verbose=0)
        return Trained(models_of(made), [model.optimizer], fitted.history, predict(made, test))

    if as_it_is:
        return Script(name=name, data=data, before=before, after=unchanged, **options)
    return Script(name=name, data=data, before=before, after=after, parts=([OwnStep, values], [values]), **options)


def models_of(nets: Sequence[Any]) -> list[Any]:
    """The nets without generators of seeds."""
    return [one for one in nets if isinstance(one, keras.Model)]


def with_noise(rng: np.random.Generator, count: int) -> Rows:
    x, _ = itself(rng, count)
    return x, rng.normal(size=(count, 2)).astype("float32")


def vae_nets() -> Any:
    return net(dense(6, "tanh"), dense(4), shape=(8,))(), net(dense(6, "tanh"), dense(8), shape=(2,))()


def vae(nets: Any, batch: Any, training: bool) -> Any:
    encoder, decoder = nets
    x, noise = batch
    mean, log_variance = tf.split(encoder(x), 2, axis=1)
    codes = mean + tf.exp(log_variance / 2) * noise
    distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)
    return {"loss": distance + divergence, "divergence": divergence}


def decoded(nets: Any, batch: Any) -> Any:
    return nets[1](nets[0](batch[0])[:, :2])


def drawing_vae_nets() -> Any:
    return *vae_nets(), keras.random.SeedGenerator(1)


def drawn_vae(nets: Any, batch: Any, training: bool) -> Any:
    encoder, decoder, noise = nets
    (x,) = batch
    mean, log_variance = tf.split(encoder(x), 2, axis=1)
    codes = mean + tf.exp(log_variance / 2) * keras.random.normal(tf.shape(mean), seed=noise)
    distance = tf.reduce_sum((decoder(codes) - x) ** 2, axis=1)
    return {"loss": distance - 0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)}


def drawn_by_shards(train: Rows, test: Rows, shards: int, reordered: bool) -> Trained:
    """In plain TensorFlow: one device computes the shards in turn, each with the seed of its step and its number."""
    nets, optimizer = drawing_vae_nets(), _o.Adam(0.01)
    encoder, decoder, noise = nets
    seed = tf.constant(noise.state.numpy())
    variables = [*encoder.trainable_variables, *decoder.trainable_variables]
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
                noise.state.assign(own)
                with tf.GradientTape() as tape:
                    rows = (x[number * share : (number + 1) * share],)
                    loss = tf.reduce_sum(drawn_vae(nets, rows, True)["loss"])
                found.append(tape.gradient(loss, [v.value for v in variables]))
                total += float(loss)
            found = found[::-1] if reordered else found
            weight = 1 / len(x) if reordered else 1.0  # divided before instead of after
            sums = [tf.add_n([g * weight for g in each]) for each in zip(*found, strict=True)]
            optimizer.apply([g if reordered else g / len(x) for g in sums], variables)
        history.append(total / len(train[0]))
    return Trained([encoder, decoder], [optimizer], {"loss": history}, decoded(nets, test))


def two_views(rng: np.random.Generator, count: int) -> Rows:
    """Two vectors, and whether they are views of one thing."""
    a, b = (rng.normal(size=(count, 4)).astype("float32") for _ in range(2))
    same = rng.integers(0, 2, count).astype("float32")
    return a, np.where(same[:, None] > 0, a + 0.3 * b, b).astype("float32"), same


def embedding_net() -> Any:
    return net(dense(8, "tanh"), dense(3))()


def siamese(nets: Any, batch: Any, training: bool) -> Any:
    a, b, same = batch
    squares = tf.reduce_sum((nets[0](a) - nets[0](b)) ** 2, axis=1)
    distance = tf.sqrt(squares + 1e-6)
    loss = same * squares + (1 - same) * tf.nn.relu(2 - distance) ** 2
    return {"loss": loss, "distance": distance}


def student_and_teacher() -> Any:
    student = net(dense(4, "tanh"), lambda: L.BatchNormalization(momentum=0.8, synchronized=True), dense(3))()
    teacher = net(dense(8, "tanh"), L.BatchNormalization, dense(3))()
    teacher.trainable = False
    return student, teacher


def distiller(nets: Any, batch: Any, training: bool) -> Any:
    student, teacher = nets
    x, y = batch
    outputs, wanted = student(x, training=training), teacher(x, training=False)
    hard = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
    soft = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(wanted / 2), outputs / 2)
    return {"loss": 0.3 * hard + 4 * soft, "hard": hard}


def diffused(rng: np.random.Generator, count: int) -> Rows:
    """Pictures, the noise for each, and how far it is mixed in; fixed, so that both scripts see the same."""
    x, _ = itself(rng, count)
    return x, rng.normal(size=x.shape).astype("float32"), rng.uniform(0, 1, (count, 1)).astype("float32")


def critic_net() -> Any:
    # The gradient of a last bias is zero, but for rounding, of which Adam makes whole steps.
    return net(dense(8, "tanh"), dense(1, use_bias=False), shape=(8,))()


def critic(nets: Any, batch: Any, training: bool) -> Any:
    (judge,) = nets
    real, fake, part = batch
    mixed = part * real + (1 - part) * fake
    with tf.GradientTape() as tape:
        tape.watch(mixed)
        judged = judge(mixed)
    norm = tf.sqrt(tf.reduce_sum(tape.gradient(judged, mixed) ** 2, axis=1) + 1e-6)
    penalty = 10 * (norm - 1) ** 2
    return {"loss": (judge(fake) - judge(real))[:, 0] + penalty, "penalty": penalty}


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


def simclr(nets: Any, batch: Any, training: bool, gather: Callable[[Any], Any] = tf.identity_n) -> Any:
    first, second = (tf.math.l2_normalize(nets[0](crops), 1) for crops in batch)
    every = tf.concat(gather([first, second]), axis=0)
    same = 5 * tf.reduce_sum(first * second, axis=1)
    totals = [tf.reduce_sum(tf.exp(5 * own @ tf.transpose(every)), 1) - tf.exp(5.0) for own in (first, second)]
    return {"loss": (tf.math.log(totals[0]) + tf.math.log(totals[1])) / 2 - same}


def bought(rng: np.random.Generator, count: int) -> Rows:
    """A user and what was bought; the others' purchases of the batch are the negatives."""
    user = rng.integers(0, 10, (count, 1))
    return user, (user + rng.integers(0, 3, (count, 1))) % 14


def towers() -> Any:
    return [
        net(lambda n=n: L.Embedding(n, 4), L.Flatten, dense(4), shape=(1,), dtype="int64")()
        for n in (10, 14)
    ]  # fmt: skip


def two_towers(nets: Any, batch: Any, training: bool, gather: Callable[[Any], Any] = tf.identity) -> Any:
    query, candidates = nets[0](batch[0]), nets[1](batch[1])
    scores = query @ tf.transpose(gather(candidates))
    own = tf.reduce_sum(query * candidates, axis=1)
    better = tf.reduce_sum(tf.cast(scores > own[:, None] + 1e-4, tf.float32), axis=1)
    return {"loss": tf.reduce_logsumexp(scores, axis=1) - own, "top3": tf.cast(better < 3, tf.float32)}


_views = {"names": ("loss", "distance"), "as_data": batched}
ENTRIES = [
    own(
        *("VAE, its noise in the data", split(with_noise), vae_nets, vae),
        names=("loss", "divergence"),
        predict=decoded,
    ),
    own(
        name="VAE, its noise drawn",
        data=lambda: tuple((x,) for x, _ in split(itself)()),
        nets=drawing_vae_nets,
        values=drawn_vae,
        predict=decoded,
        by_shards=drawn_by_shards,
        draws=True,
    ),
    own("siamese net, contrastive pairs", split(two_views), lambda: [embedding_net()], siamese, **_views),
    own(
        "distillation, a frozen teacher, synchronized BatchNorm",
        *(split(classes), student_and_teacher, distiller),
        names=("loss", "hard"),
    ),
    own(
        *("Wasserstein critic with gradient penalty", split(diffused), lambda: [critic_net()], critic),
        optimizer=lambda: _o.Adam(0.005),
        names=("loss", "penalty"),
        as_data=batched,
    ),
    Script(name="a training loop by hand", data=split(regression), before=loop_before, after=loop_after),
    Script(name="GAN", data=split(with_noise), before=gan_before, after=gan_after, parts=([], [Gan])),
    own(
        *("train_step overridden, as it is", split(two_views), lambda: [embedding_net()], siamese),
        as_it_is=True,
        **_views,
    ),
    own(
        *("SimCLR: all pairs of the global batch", split(two_crops), lambda: [embedding_net()], simclr),
        whole_batch=True,
    ),
    own(
        *("two towers, the batch as negatives", split(bought), towers, two_towers),
        optimizer=lambda: _o.SGD(0.3),
        names=("loss", "top3"),
        whole_batch=True,
        as_data=batched,
    ),
]
