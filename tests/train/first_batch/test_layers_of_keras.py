"""The check of the first batch is silent on every layer of Keras, but for those that are refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import TWO, check

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

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
OF_SEQUENCES: dict[str, Layer] = {
    "Activation": lambda: L.Activation("tanh"),
    **{name: getattr(L, name) for name in ("ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "Identity", "Masking")},
    **{name: getattr(L, name) for name in ("LayerNormalization", "RMSNormalization", "UnitNormalization")},
    **{name: getattr(L, name) for name in ("BatchNormalization", "Flatten", "UpSampling1D", "ZeroPadding1D")},
    **{name: getattr(L, name) for name in ("MaxPooling1D", "Cropping1D")},
    **{name: getattr(L, name) for name in ("GlobalAveragePooling1D", "GlobalMaxPooling1D")},
    "GroupNormalization": lambda: L.GroupNormalization(2),
    "AveragePooling1D": lambda: L.AveragePooling1D(2),
    "Conv1D": lambda: L.Conv1D(3, 2),
    "Conv1DTranspose": lambda: L.Conv1DTranspose(3, 2),
    "DepthwiseConv1D": lambda: L.DepthwiseConv1D(2),
    "SeparableConv1D": lambda: L.SeparableConv1D(3, 2),
    "Dense": lambda: L.Dense(3),
    "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (6, 3)),
    "Lambda": lambda: L.Lambda(lambda x: 2 * x),
    "AdaptiveAveragePooling1D": lambda: L.AdaptiveAveragePooling1D(2),
    "AdaptiveMaxPooling1D": lambda: L.AdaptiveMaxPooling1D(2),
    "ActivityRegularization": lambda: L.ActivityRegularization(0.1),
    "AlphaDropout": lambda: L.AlphaDropout(0.4),
    "Dropout": lambda: L.Dropout(0.4),
    "GaussianDropout": lambda: L.GaussianDropout(0.4),
    "GaussianNoise": lambda: L.GaussianNoise(0.4),
    "SpatialDropout1D": lambda: L.SpatialDropout1D(0.4),
    "Permute": lambda: L.Permute((2, 1)),
    "Reshape": lambda: L.Reshape((4, 6)),
    "Normalization": lambda: L.Normalization(mean=0.5, variance=2.0),
    "Rescaling": lambda: L.Rescaling(2.0),
    "Pipeline": lambda: L.Pipeline([L.Rescaling(2.0), L.GaussianNoise(0.4)]),
    "Bidirectional": lambda: L.Bidirectional(L.LSTM(3, dropout=0.3)),
    "GRU": lambda: L.GRU(3, dropout=0.3, recurrent_dropout=0.3),
    "LSTM": lambda: L.LSTM(3),
    "SimpleRNN": lambda: L.SimpleRNN(3),
    "GRUCell": lambda: L.RNN(L.GRUCell(3)),
    "LSTMCell": lambda: L.RNN(L.LSTMCell(3)),
    "SimpleRNNCell": lambda: L.RNN(L.SimpleRNNCell(3)),
    "StackedRNNCells": lambda: L.RNN(L.StackedRNNCells([L.GRUCell(3), L.LSTMCell(2)])),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(3)),
}
OF_PICTURES: dict[str, Layer] = {
    **{name: getattr(L, name) for name in ("MaxPooling2D", "Cropping2D", "UpSampling2D")},
    **{name: getattr(L, name) for name in ("GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D")},
    **{name: getattr(L, name) for name in ("RandomFlip", "RandomGrayscale", "MixUp", "CutMix")},
    "AveragePooling2D": lambda: L.AveragePooling2D(2),
    "Conv2D": lambda: L.Conv2D(3, 2),
    "Conv2DTranspose": lambda: L.Conv2DTranspose(3, 2),
    "DepthwiseConv2D": lambda: L.DepthwiseConv2D(2),
    "SeparableConv2D": lambda: L.SeparableConv2D(3, 2),
    "AdaptiveAveragePooling2D": lambda: L.AdaptiveAveragePooling2D(2),
    "AdaptiveMaxPooling2D": lambda: L.AdaptiveMaxPooling2D(2),
    "SpatialDropout2D": lambda: L.SpatialDropout2D(0.4),
    "AugMix": lambda: L.AugMix(value_range=(0, 1)),
    "AutoContrast": lambda: L.AutoContrast(value_range=(0, 1)),
    "CenterCrop": lambda: L.CenterCrop(6, 6),
    "ContrastLimitedAdaptiveHistogramEqualization": lambda: L.ContrastLimitedAdaptiveHistogramEqualization((0, 1)),
    "Equalization": lambda: L.Equalization(value_range=(0, 1)),
    "RandAugment": lambda: L.RandAugment(value_range=(0, 1)),
    "RandomBrightness": lambda: L.RandomBrightness(0.3, value_range=(0, 1)),
    "RandomColorDegeneration": lambda: L.RandomColorDegeneration(0.5, value_range=(0, 1)),
    "RandomColorJitter": lambda: L.RandomColorJitter((0, 1), 0.3, 0.3, (0.2, 0.8), 0.2),
    "RandomContrast": lambda: L.RandomContrast(0.3, value_range=(0, 1)),
    "RandomCrop": lambda: L.RandomCrop(6, 6),
    "RandomElasticTransform": lambda: L.RandomElasticTransform(value_range=(0, 1)),
    "RandomErasing": lambda: L.RandomErasing(value_range=(0, 1)),
    "RandomGaussianBlur": lambda: L.RandomGaussianBlur(value_range=(0, 1)),
    "RandomHue": lambda: L.RandomHue(0.3, value_range=(0, 1)),
    "RandomInvert": lambda: L.RandomInvert(0.5, value_range=(0, 1)),
    "RandomPerspective": lambda: L.RandomPerspective(0.5),
    "RandomPosterization": lambda: L.RandomPosterization(4, value_range=(0, 1)),
    "RandomRotation": lambda: L.RandomRotation(0.2),
    "RandomSaturation": lambda: L.RandomSaturation(0.5, value_range=(0, 1)),
    "RandomSharpness": lambda: L.RandomSharpness(0.5, value_range=(0, 1)),
    "RandomShear": lambda: L.RandomShear(0.2, 0.2),
    "RandomTranslation": lambda: L.RandomTranslation(0.2, 0.2),
    "RandomZoom": lambda: L.RandomZoom(0.2),
    "Resizing": lambda: L.Resizing(6, 6),
    "Solarization": lambda: L.Solarization(value_range=(0, 1)),
}
OF_VOLUMES: dict[str, Layer] = {
    **{name: getattr(L, name) for name in ("MaxPooling3D", "Cropping3D", "UpSampling3D")},
    **{name: getattr(L, name) for name in ("GlobalAveragePooling3D", "GlobalMaxPooling3D", "ZeroPadding3D")},
    "AveragePooling3D": lambda: L.AveragePooling3D(2),
    "Conv3D": lambda: L.Conv3D(3, 2),
    "Conv3DTranspose": lambda: L.Conv3DTranspose(3, 2),
    "AdaptiveAveragePooling3D": lambda: L.AdaptiveAveragePooling3D(2),
    "AdaptiveMaxPooling3D": lambda: L.AdaptiveMaxPooling3D(2),
    "SpatialDropout3D": lambda: L.SpatialDropout3D(0.4),
}
OF_FILMS: dict[str, Layer] = {"ConvLSTM2D": lambda: L.ConvLSTM2D(2, 2)}
OF_IDS: dict[str, Layer] = {
    "Embedding": lambda: L.Embedding(5, 3, mask_zero=True),
    "ReversibleEmbedding": lambda: L.ReversibleEmbedding(5, 3),
    "CategoryEncoding": lambda: L.CategoryEncoding(5, output_mode="multi_hot"),
    "Hashing": lambda: L.Hashing(5),
    "IntegerLookup": lambda: L.IntegerLookup(vocabulary=[1, 2, 3]),
    "RepeatVector": lambda: L.Pipeline([L.CategoryEncoding(5, output_mode="count"), L.RepeatVector(2)]),
}
OF_SOUND: dict[str, Layer] = {
    "Discretization": lambda: L.Discretization(bin_boundaries=[-1.0, 0.0, 1.0]),
    "MelSpectrogram": lambda: L.MelSpectrogram(sequence_length=64, sequence_stride=32, fft_length=64, num_mel_bins=8),
}
OF_TWO: dict[str, Layer] = {
    **{
        name: getattr(L, name)
        for name in ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")
    },
    "Dot": lambda: L.Dot(axes=1),
    "Attention": lambda: L.Attention(dropout=0.3),
    "AdditiveAttention": L.AdditiveAttention,
}
OF_QUERIES: dict[str, Layer] = {
    "MultiHeadAttention": lambda: L.MultiHeadAttention(2, 3, dropout=0.3),
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
REFUSED = {"SpectralNormalization"}


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


def test_what_is_refused(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((6,))
        return keras.Model(inputs, L.SpectralNormalization(L.Dense(1))(inputs))

    with pytest.raises(StepError, match="assigns its own trainable weight"):
        check(make_loop(TWO, net), SEQUENCE[:, :, 0], Y)
