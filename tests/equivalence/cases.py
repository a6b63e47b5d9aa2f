"""The features whose result must not depend on the number of replicas, each as twenty steps of a tiny net.

The nets are smooth (tanh, average pooling): a ReLU or a maximum flips at ties and turns rounding into differences that
say nothing. Only `Case` and `CASES` are meant for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
import written_data

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
EPOCHS, BATCH = 4, 24  # five batches an epoch: twenty steps
_SHUFFLED: dict[str, Any] = {"global_batch_size": BATCH, "shuffle": True, "seed": 2}
TABLE = 400  # rows of a large table
FULL, PARTIAL, LONELY = 5 * BATCH, 4 * BATCH + 13, 4 * BATCH + 1  # examples; the last batch holds 24, 13 or 1


def _classes(count: int, *, classes: int = 3, weighted: bool = False) -> mk.data.Batches:
    return _recipe(_split(count, classes, weighted))


def _split(count: int, classes: int = 3, weighted: bool = False) -> mk.data.Split:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 4)).astype("float32")
    y = np.argmax(x[:, :3] + 0.5 * rng.normal(size=(count, 3)), 1) % classes
    weight = rng.uniform(0, 2, count) if weighted else None
    return mk.data.arrays(x, y, num_classes=classes, sample_weight=weight)


def _recipe(split: Any) -> mk.data.Batches:
    return mk.data.batches(split, **_SHUFFLED)


def _named(count: int) -> mk.data.Batches:
    rng = np.random.default_rng(3)
    x = {"a": rng.normal(size=(count, 3)).astype("float32"), "b": rng.normal(size=(count, 2)).astype("float32")}
    y = {"sum": (x["a"].sum(1) + x["b"].sum(1))[:, None], "sign": np.int64(x["b"][:, 0] > 0)}
    return _recipe(mk.data.arrays(x, y))


def _words(count: int) -> mk.data.Batches:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 12, (count, 5))
    return _recipe(mk.data.arrays(x, x.sum(1) % 3, num_classes=3))


def _ids(count: int) -> mk.data.Batches:
    """Ids of a large table: some occur several times in a batch, others never; -1 is the last row in Keras."""
    rng = np.random.default_rng(7)
    x = rng.choice([0, 1, 1, *rng.integers(0, TABLE, 30), TABLE - 1, -1], (count, 5))
    return _recipe(mk.data.arrays(x, x.sum(1) % 3, num_classes=3))


def _pictures(count: int) -> mk.data.Batches:
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 6, 6, 1)) + np.eye(3)[y].repeat(2, 1)[:, :, None, None]
    return _recipe(mk.data.arrays(x.astype("float32"), y, num_classes=3))


def _far_targets(count: int) -> mk.data.Batches:
    """Targets that make float16 gradients overflow: a few at first, and one example much later in every epoch."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(count, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 1))
    y[::50] *= 40
    return _recipe(mk.data.arrays(x, y.astype("float32")))


def _records(count: int) -> mk.data.Recipe:
    return written_data.records(_split(count), **_SHUFFLED)


def _image_files(count: int) -> mk.data.Recipe:
    split = _pictures(count).split
    pixels = np.clip(128 + 40 * split.images, 0, 255).astype("uint8")
    return written_data.image_folder(pixels, split.labels, **_SHUFFLED)


def _tables(count: int) -> mk.data.Recipe:
    return written_data.parquet(*_split(count, weighted=True).as_element(), **_SHUFFLED)


def _items(count: int) -> mk.data.Recipe:
    return written_data.source(*_split(count).as_element(), **_SHUFFLED)


def _net(*layers: Any, shape: tuple[int, ...] = (4,)) -> Callable[[], Any]:
    """Each layer is a function, so that every call makes new ones."""
    return lambda: keras.Sequential([keras.Input(shape), *(layer() for layer in layers)])


def _dense(units: int, **options: Any) -> Callable[[], Any]:
    return lambda: L.Dense(units, **options)


_tanh = _dense(8, activation="tanh")
_plain_net = _net(_tanh, _dense(3))


def _named_net() -> Any:
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    hidden = L.Dense(6, activation="tanh")(L.Concatenate()([a, b]))
    outputs = {"sum": L.Dense(1)(hidden), "sign": L.Dense(2)(hidden)}
    return keras.Model({"a": a, "b": b}, outputs)


def _normal_net(**options: Any) -> Callable[[], Any]:
    return _net(_tanh, lambda: L.BatchNormalization(momentum=0.8, **options), _dense(3))


_picture_layers = (
    lambda: L.Conv2D(3, 3, activation="tanh"),
    lambda: L.AveragePooling2D(2),
    L.Flatten,
    _dense(3),
)


def _cnn() -> Any:
    layers = [layer() for layer in _picture_layers]
    norm = L.BatchNormalization(momentum=0.8)
    return keras.Sequential([keras.Input((6, 6, 1)), layers[0], norm, *layers[1:]])


def _transformer() -> Any:
    """Without biases of attention: the true gradient of a key's is zero, so that Adam would follow its rounding."""
    x = keras.Input((5,), dtype="int64")
    h = L.Embedding(12, 8)(x)
    attended = L.MultiHeadAttention(2, 4, use_bias=False)(h, h)
    h = L.LayerNormalization()(h + L.Dropout(0.2)(attended))
    h = L.LayerNormalization()(h + L.Dense(8, activation="gelu")(h))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(h)))


def _logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _sgd() -> Any:
    return keras.optimizers.SGD(0.2)


def _schedule(top: float) -> Any:
    return keras.optimizers.schedules.CosineDecay(top / 8, 14, warmup_target=top, warmup_steps=5)


def _l2() -> Any:
    return _net(_dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.05)), _dense(3))()


def _binary_metrics() -> list[Any]:
    metrics = keras.metrics
    return [metrics.AUC(name="auc", from_logits=True), metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]


def _f1_metrics() -> list[Any]:
    return [keras.metrics.F1Score(average="macro", name="f1"), keras.metrics.CategoricalAccuracy(name="accuracy")]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: what the row proves.
        net, optimizer: called in the strategy's scope.
        data: the recipe of global batches.
        loss, metrics: make what `Step` takes; for several outputs dicts by their names.
        options: further options of `Step`.
        class_weight: as in `fit`.
        policy: Keras's dtype policy.
        large_table: the Embedding is trained as if it were large: where each replica has a copy, in place.
        needs: a package that reads the data, without which tests skip the row.
        per_shard: the result depends on how a batch is cut (BatchNorm, Dropout, sums in float16): its reference is one
            device that computes the same shards; otherwise it is one device that computes the whole batch.
    """

    name: str
    net: Callable[[], Any] = _plain_net
    optimizer: Callable[[], Any] = _sgd
    data: Callable[[], mk.data.Recipe] = lambda: _classes(FULL)
    loss: Callable[[], Any] = _logits
    metrics: Callable[[], Any] = list
    options: Mapping[str, Any] = field(default_factory=dict)
    class_weight: Mapping[int, float] | None = None
    policy: str = "float32"
    large_table: bool = False
    needs: str = "mirrorkit"
    per_shard: bool = False


_o = keras.optimizers
_OF_LARGE_TABLES: dict[str, Callable[[], Any]] = {
    "SGD": _sgd,
    "Adagrad": lambda: _o.Adagrad(0.1),
    "momentum": lambda: _o.SGD(0.05, momentum=0.9, nesterov=True),
    "weight decay": lambda: _o.SGD(0.2, weight_decay=0.1),
    "Adam": lambda: _o.Adam(0.02, amsgrad=True),
    "AdamW": lambda: _o.AdamW(_schedule(0.02), weight_decay=0.05),
    "Nadam": lambda: _o.Nadam(0.02),
    "Adamax": lambda: _o.Adamax(0.02),
    "Adadelta": lambda: _o.Adadelta(1.0),
    "RMSprop": lambda: _o.RMSprop(0.01, momentum=0.5, centered=True),
    "Lion": lambda: _o.Lion(0.005),
}


class LargestOfMean:
    """A transform with a state: the running mean of the gradient, divided by its largest number of all weights."""

    def init(self, variables: Any) -> Any:
        return [np.zeros(variable.shape, "float32") for variable in variables]

    def update(self, gradients: Any, state: Any, step: Any) -> Any:
        means = [0.7 * old + 0.3 * new for old, new in zip(state, gradients, strict=True)]
        largest = tf.reduce_max([tf.reduce_max(tf.abs(mean)) for mean in means])
        return [mean / largest for mean in means], means


CASES = {
    case.name: case
    for case in (
        Case("SGD"),
        Case("momentum", optimizer=lambda: _o.SGD(0.05, momentum=0.9, nesterov=True)),
        Case("Adam", optimizer=lambda: _o.Adam(0.02)),
        Case("AdamW", optimizer=lambda: _o.AdamW(0.02, weight_decay=0.05)),
        Case("Lion", optimizer=lambda: _o.Lion(0.005, weight_decay=0.05)),
        Case("learning-rate schedule", optimizer=lambda: _o.SGD(_schedule(0.4), momentum=0.5)),
        Case("weight decay", optimizer=lambda: _o.SGD(0.2, weight_decay=0.1)),
        Case("clip_norm", options={"clip_norm": 0.2}),
        Case("clip_value", options={"clip_value": 0.05}),
        Case("transforms", options={"transforms": [LargestOfMean()]}),
        Case("accumulate", data=lambda: _classes(PARTIAL), options={"accumulate": 2}),
        Case("ema", options={"ema": 0.8}),
        Case(
            'loss_scale="dynamic", mixed_float16, overflows',
            net=_net(_tanh, _dense(1)),
            optimizer=lambda: _o.SGD(0.01, momentum=0.9),
            data=lambda: _far_targets(FULL),
            loss=lambda: keras.losses.MeanSquaredError(),
            options={"loss_scale": "dynamic"},
            policy="mixed_float16",
            per_shard=True,
        ),
        Case("mixed_bfloat16", policy="mixed_bfloat16", per_shard=True),
        Case(
            "sample weights",
            data=lambda: _classes(PARTIAL, weighted=True),
            options={"weighted_metrics": [keras.metrics.SparseCategoricalAccuracy]},
        ),
        Case("class weights", data=lambda: _classes(PARTIAL), class_weight={0: 0.5, 2: 3.0}),
        Case("model.losses (L2)", net=_l2, data=lambda: _classes(PARTIAL)),
        Case(
            "several inputs and outputs",
            net=_named_net,
            data=lambda: _named(PARTIAL),
            loss=lambda: {"sum": keras.losses.Huber(), "sign": _logits()},
            metrics=lambda: {"sum": [keras.metrics.MeanAbsoluteError(name="mae")]},
            options={"loss_weights": {"sum": 1.0, "sign": 0.3}},
        ),
        Case(
            "Embedding",
            net=_net(lambda: L.Embedding(12, 3), L.Flatten, _dense(3), shape=(5,)),
            optimizer=lambda: _o.Adam(0.02),
            data=lambda: _words(PARTIAL),
        ),
        *(
            Case(
                f"large table, {name}",
                net=_net(lambda: L.Embedding(TABLE, 4), L.Flatten, _dense(3), shape=(5,)),
                optimizer=optimizer,
                data=lambda: _ids(PARTIAL),
                large_table=True,
            )
            for name, optimizer in _OF_LARGE_TABLES.items()
        ),
        Case(
            "AUC",
            net=_net(_tanh, _dense(1)),
            data=lambda: _classes(PARTIAL, classes=2),
            loss=lambda: keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=_binary_metrics,
        ),
        Case(
            "F1",
            data=lambda: _one_hot(PARTIAL),
            loss=lambda: keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=_f1_metrics,
        ),
        Case("partial batch", data=lambda: _classes(PARTIAL)),
        Case("empty share", data=lambda: _classes(LONELY)),
        Case("records", data=lambda: _records(PARTIAL)),
        Case(
            "image_folder",
            net=_net(lambda: L.Rescaling(1 / 40, -3.2), *_picture_layers, shape=(6, 6, 1)),
            data=lambda: _image_files(PARTIAL),
        ),
        Case("parquet", data=lambda: _tables(PARTIAL), needs="pyarrow"),
        Case("source", data=lambda: _items(PARTIAL)),
        Case("BatchNorm", net=_normal_net(), data=lambda: _classes(PARTIAL), per_shard=True),
        Case("BatchNorm, empty share", net=_normal_net(), data=lambda: _classes(LONELY), per_shard=True),
        Case("synchronized BatchNorm", net=_normal_net(synchronized=True), data=lambda: _classes(PARTIAL)),
        Case("synchronized BatchNorm, empty share", net=_normal_net(synchronized=True), data=lambda: _classes(LONELY)),
        Case(
            "Dropout",
            net=_net(_dense(12, activation="tanh"), lambda: L.Dropout(0.4), _dense(3)),
            data=lambda: _classes(PARTIAL),
            per_shard=True,
        ),
        Case(
            "augmentation layers",
            net=_net(
                lambda: L.RandomTranslation(0.3, 0.3, fill_mode="constant"),
                lambda: L.RandomFlip("horizontal"),
                *_picture_layers,
                shape=(6, 6, 1),
            ),
            data=lambda: _pictures(FULL),
            per_shard=True,
        ),
        Case("CNN with BatchNorm", net=_cnn, data=lambda: _pictures(PARTIAL), per_shard=True),
        Case(
            "transformer",
            net=_transformer,
            optimizer=lambda: _o.Adam(0.01),
            data=lambda: _words(PARTIAL),
            per_shard=True,
        ),
        Case(
            "all at once",
            net=_net(_dense(8, use_bias=False), L.BatchNormalization, _tanh, lambda: L.Dropout(0.3), _dense(3)),
            optimizer=lambda: _o.AdamW(_schedule(0.02), weight_decay=0.02),
            data=lambda: _classes(PARTIAL, weighted=True),
            options={"clip_norm": 0.5, "accumulate": 2, "ema": 0.9},
            per_shard=True,
        ),
    )
}


def _one_hot(count: int) -> mk.data.Batches:
    return mk.data.batches(_split(count), **_SHUFFLED, one_hot=True)
