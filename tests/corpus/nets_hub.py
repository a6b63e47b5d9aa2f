"""Models of KerasHub, small and from a config: padded texts, and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_hub
import numpy as np
import tensorflow as tf
from cases import EPOCHS
from entries import BATCH, Fit, Rows, Script, Trained, batched, logits, split
from nets_sequences import LENGTH, SUMMED, WORDS, summed_rows, texts

import mirrorkit as mk
from mirrorkit._keras import keras

H, _o = keras_hub.models, keras.optimizers


def texts_and_classes(rng: np.random.Generator, count: int) -> Rows:
    """What a preprocessor makes of texts to be classified."""
    tokens, classes = texts(rng, count)
    return {"token_ids": tokens, "segment_ids": np.zeros_like(tokens), "padding_mask": tokens > 0}, classes


def to_next_tokens(tokens: Any) -> Rows:
    """What a preprocessor makes of texts to be continued: each next token, weighted with 0 where the text has ended."""
    x, y = tokens[:, :-1], tokens[:, 1:]
    return {"token_ids": x, "padding_mask": x > 0}, y, tf.cast(y > 0, "float32")


def pictures(rng: np.random.Generator, count: int) -> Rows:
    x = rng.normal(size=(count, 8, 8, 3)).astype("float32")
    return x, (x[..., 0].mean((1, 2)) > 0).astype("int64")


def bert() -> Any:
    backbone = H.BertBackbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=LENGTH)
    return H.BertTextClassifier(backbone, num_classes=3, dropout=0.0)


def gpt2() -> Any:
    return H.GPT2CausalLM(H.GPT2Backbone(WORDS, 2, 2, 8, 16, dropout=0.0, max_sequence_length=LENGTH))


def gemma_with_lora() -> Any:
    heads = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    backbone = H.GemmaBackbone(WORDS, num_layers=2, hidden_dim=8, intermediate_dim=16, **heads)
    backbone.enable_lora(rank=2)
    return H.GemmaCausalLM(backbone)


def vit() -> Any:
    return H.ViTImageClassifier(H.ViTBackbone((8, 8, 3), 4, 2, 2, 8, 16), num_classes=2)


def adam() -> Any:
    return _o.Adam(0.01, epsilon=1e-3)


def causal(name: str, make: Callable[[], Any], **options: Any) -> Script:
    def before(train: Rows, test: Rows) -> Trained:
        train, test = (batched(rows).map(to_next_tokens) for rows in (*train, *test))
        model = make()
        model.compile(adam(), loss=logits(), weighted_metrics=["accuracy"], jit_compile=False)
        fitted = model.fit(train, epochs=EPOCHS, validation_data=test, verbose=0)
        return Trained([model], [model.optimizer], fitted.history, model.predict(test, verbose=0))

    def after(strategy: Any, train: Rows, test: Rows) -> Trained:
        sets = (mk.data.arrays(*rows) for rows in (train, test))
        train, test = (mk.data.batches(part, global_batch_size=BATCH, map=to_next_tokens) for part in sets)
        with strategy.scope():
            model = make()
            model.compile(adam(), loss=logits(), weighted_metrics=["accuracy"], jit_compile=False)
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        fitted = loop.fit(train, epochs=EPOCHS, validation_data=test, verbose=0)
        return Trained([model], [model.optimizer], fitted.history, loop.predict(test))

    data = split(lambda rng, count: texts(rng, count)[:1])
    return Script(name=name, data=data, before=before, after=after, orders=2, **options)


_classifier = {"orders": 2, "loss": logits, "metrics": lambda: ["accuracy"], "without": ("key/bias",)}
ENTRIES = [
    Fit(
        name="BERT classifier, Adam",
        data=split(texts_and_classes),
        model=bert,
        optimizer=adam,
        reference=SUMMED,
        fitting=summed_rows,
        **_classifier,
    ),
    causal("GPT-2 language model", gpt2, without=("key/bias",)),
    causal("Gemma language model, LoRA", gemma_with_lora),
    # Two orders are too few to see how much it amplifies rounding: in float64 two replicas are 3e-8 from one.
    Fit(name="ViT classifier", data=split(pictures), model=vit, **_classifier | {"orders": 8}),
]
