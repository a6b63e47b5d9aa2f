"""The check of the first batch is silent on every layer of Keras, but for those that are refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import TWO, check

from mirrorkit._keras import keras

L = keras.layers
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

rng = np.random.default_rng(0)
SEQUENCE = rng.normal(size=(8, 6, 4)).astype("float32")
PICTURE = rng.uniform(size=(8, 8, 8, 3)).astype("float32")
VOLUME = rng.normal(size=(8, 4, 4, 4, 2)).astype("float32")
FILM = rng.normal(size=(8, 3, 6, 6, 2)).astype("float32")
IDS = rng.integers(0, 5, (8, 6)).astype("int32")
SOUND = rng.normal(size=(8, 512)).astype("float32")
Y = rng.normal(size=(8, 1)).astype("float32")

Layer = Callable[[], Any]


def of(*names: str, args: tuple[Any, ...] = (), **options: Any) -> dict[str, Layer]:
    """Layers of these names, made with the same arguments."""
    return {name: lambda name=name: getattr(L, name)(*args, **options) for name in names}


OF_SEQUENCES: dict[str, Layer] = {
    **of("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "Identity", "Masking", "Flatten", "BatchNormalization"),
    **of("LayerNormalization", "RMSNormalization", "UnitNormalization", "UpSampling1D", "ZeroPadding1D", "Cropping1D"),
    **of("MaxPooling1D", "GlobalAveragePooling1D", "GlobalMaxPooling1D"),
    **of("AveragePooling1D", "AdaptiveAveragePooling1D", "AdaptiveMaxPooling1D", "GroupNormalization", args=(2,)),
    **of("Conv1D", "Conv1DTranspose", "SeparableConv1D", args=(3, 2)),
    **of("DepthwiseConv1D", args=(2,)),
    **of("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", args=(0.4,)),
    **of("Dense", "LSTM", "SimpleRNN", args=(3,)),
    **of("GRU", args=(3,), dropout=0.3, recurrent_dropout=0.3),
    **of("Activation", args=("tanh",)),
    **of("ActivityRegularization", args=(0.1,)),
    **of("Rescaling", args=(2.0,)),
    **of("Permute", args=((2, 1),)),
    **of("Reshape", args=((4, 6),)),
    **of("Normalization", mean=0.5, variance=2.0),
    "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (6, 3)),
    "Lambda": lambda: L.Lambda(lambda x: 2 * x),
    "Pipeline": lambda: L.Pipeline([L.Rescaling(2.0), L.GaussianNoise(0.4)]),
    "Bidirectional": lambda: L.Bidirectional(L.LSTM(3, dropout=0.3)),
    **{name: lambda name=name: L.RNN(getattr(L, name)(3)) for name in ("GRUCell", "LSTMCell", "SimpleRNNCell")},
    "StackedRNNCells": lambda: L.RNN(L.StackedRNNCells([L.GRUCell(3), L.LSTMCell(2)])),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(3)),
}
OF_PICTURES: dict[str, Layer] = {
    **of("MaxPooling2D", "GlobalAveragePooling2D", "GlobalMaxPooling2D", "Cropping2D", "UpSampling2D", "ZeroPadding2D"),
    **of("RandomFlip", "RandomGrayscale", "MixUp", "CutMix"),
    **of("AveragePooling2D", "AdaptiveAveragePooling2D", "AdaptiveMaxPooling2D", "DepthwiseConv2D", args=(2,)),
    **of("Conv2D", "Conv2DTranspose", "SeparableConv2D", args=(3, 2)),
    **of("SpatialDropout2D", args=(0.4,)),
    **of("CenterCrop", "RandomCrop", "Resizing", args=(6, 6)),
    **of("AugMix", "AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "Equalization", value_range=(0, 1)),
    **of("RandAugment", "RandomElasticTransform", "RandomErasing", "RandomGaussianBlur", value_range=(0, 1)),
    **of("Solarization", value_range=(0, 1)),
    **of("RandomBrightness", "RandomContrast", "RandomHue", args=(0.3,), value_range=(0, 1)),
    **of("RandomColorDegeneration", "RandomInvert", "RandomSaturation", args=(0.5,), value_range=(0, 1)),
    **of("RandomSharpness", args=(0.5,), value_range=(0, 1)),
    **of("RandomPosterization", args=(4,), value_range=(0, 1)),
    **of("RandomColorJitter", args=((0, 1), 0.3, 0.3, (0.2, 0.8), 0.2)),
    **of("RandomPerspective", args=(0.5,)),
    **of("RandomRotation", "RandomZoom", args=(0.2,)),
    **of("RandomShear", "RandomTranslation", args=(0.2, 0.2)),
}
OF_VOLUMES: dict[str, Layer] = {
    **of("MaxPooling3D", "GlobalAveragePooling3D", "GlobalMaxPooling3D", "Cropping3D", "UpSampling3D", "ZeroPadding3D"),
    **of("AveragePooling3D", "AdaptiveAveragePooling3D", "AdaptiveMaxPooling3D", args=(2,)),
    **of("Conv3D", "Conv3DTranspose", args=(3, 2)),
    **of("SpatialDropout3D", args=(0.4,)),
}
OF_FILMS = of("ConvLSTM2D", args=(2, 2))
OF_IDS: dict[str, Layer] = {
    **of("Embedding", args=(5, 3), mask_zero=True),
    **of("ReversibleEmbedding", args=(5, 3)),
    **of("CategoryEncoding", args=(5,), output_mode="multi_hot"),
    **of("Hashing", args=(5,)),
    **of("IntegerLookup", vocabulary=[1, 2, 3]),
    "RepeatVector": lambda: L.Pipeline([L.CategoryEncoding(5, output_mode="count"), L.RepeatVector(2)]),
}
OF_SOUND: dict[str, Layer] = {
    **of("Discretization", bin_boundaries=[-1.0, 0.0, 1.0]),
    **of("MelSpectrogram", sequence_length=64, sequence_stride=32, fft_length=64, num_mel_bins=8),
}
OF_TWO: dict[str, Layer] = {
    **of("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract", "AdditiveAttention"),
    **of("Dot", axes=1),
    **of("Attention", dropout=0.3),
}
OF_QUERIES: dict[str, Layer] = {
    **of("MultiHeadAttention", args=(2, 3), dropout=0.3),
    "GroupedQueryAttention": lambda: L.GroupQueryAttention(3, 2, 1),
}
KINDS = [
    (OF_SEQUENCES, SEQUENCE),
    (OF_PICTURES, PICTURE),
    (OF_VOLUMES, VOLUME),
    (OF_FILMS, FILM),
    (OF_IDS, IDS),
    (OF_SOUND, SOUND),
    (OF_TWO, SEQUENCE),
    (OF_QUERIES, SEQUENCE),
]
CASES = {name: (layer, x, kind) for kind, x in KINDS for name, layer in kind.items()}
OTHERS = {  # not layers of a model by themselves, of strings, of boxes, of other packages, or as others are
    "STFTSpectrogram",
    *("Layer", "Wrapper", "InputLayer", "RNN", "TFSMLayer", "FlaxLayer", "JaxLayer", "TorchModuleWrapper"),
    *("StringLookup", "TextVectorization", "HashedCrossing", "MaxNumBoundingBoxes", "ConvLSTM1D", "ConvLSTM3D"),
}
REFUSED = {"SpectralNormalization"}  # see tests/train/test_refusals.py


def test_every_layer_of_keras_is_here() -> None:
    classes = {c.__name__ for c in vars(L).values() if inspect.isclass(c) and issubclass(c, L.Layer)}
    assert classes - set(CASES) - OTHERS - REFUSED == set()


def _net(name: str) -> Any:
    layer, x, kind = CASES[name]
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    if kind is OF_IDS or kind is OF_SOUND:
        found = layer()(inputs)
        found = L.Lambda(lambda h: keras.ops.cast(h, "float32"))(found)
    elif kind is OF_TWO or kind is OF_QUERIES:
        two = [L.Dense(4)(inputs), L.Dense(4, "tanh")(inputs)]
        found = layer()(two) if kind is OF_TWO else layer()(*two)
    else:
        found = layer()(L.Dense(x.shape[-1], "sigmoid")(inputs) if kind is not OF_PICTURES else inputs)
    return keras.Model(inputs, L.Dense(1)(L.Flatten()(found)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_silent(name: str, make_loop: Any) -> None:
    check(make_loop(TWO, lambda: _net(name), metrics=["mae"]), CASES[name][1], Y)
