"""TensorFlow's errors about the user's data, in a few words: what it raised or held, in which batch, and the cure."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf

from mirrorkit.errors import DataError
from mirrorkit.train.keras_model.outputs import INPUT_NAME
from mirrorkit.train.requirements.data import ANY_ROWS, asserted_rows

# TensorFlow's own words; tests/train/calls/test_data_errors.py makes each of these errors.
_TRACEBACK = "\nTraceback (most recent call last):\n"
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")
_INDEX = re.compile(r"indices\[[\d,]+\] = (-?\d+) is not in \[0, (\d+)\).*?{{node (\S+)}}", re.DOTALL)
_SHAPE = re.compile(
    r"Shape of tensor \S+ (\[.*?\]) is not compatible with expected shape (\[.*?\]).*?" + INPUT_NAME, re.DOTALL
)
_SIZES = re.compile(
    r"^((?:Incompatible shapes|Input to reshape|Matrix size-incompatible).*?)\s*\[\[{{node (\S+)}}", re.MULTILINE
)
_TEXT = re.compile(r"Cast string to (\w+) is not supported")
_OTHER_SHARES = "Inputs to operation AddN of type AddN must have the same size and shape"  # of Keras's own mean
_CARDINALITY = re.compile(r"expected to contain (\d+) elements but contained only (\d+)")
_OF_MAP = re.compile(r"Error in user-defined function passed to \S+ transformation with iterator: \S+: (.*)")
_NAMED = re.compile(r"mirrorkit\.errors\.\w+: ")  # an error that says itself where it comes from
_OF_NAN = -(2**63)  # what a NaN becomes as an integer


def explain(error: tf.errors.OpError, place: Callable[[bool], str]) -> DataError | None:
    """Return an error that names what is wrong with the data; None where that is not to be seen.

    Args:
        error: TensorFlow's.
        place: tells in which batch, such as "batch 5", or nothing; given whether it was being read, or computed on.
    """
    message = str(error.message)
    if _TRACEBACK in message:
        return DataError(_of_python(message, _at(place(True))))
    if found := _OF_MAP.search(message):
        return DataError(f"{found[1]}\n(A function of the dataset raised this{_at(place(True))}.)")
    if found := _CARDINALITY.search(message):
        return DataError(
            f"The dataset asserts that it has {found[1]} elements, and has {found[2]}. Correct the number in "
            "tf.data.experimental.assert_cardinality."
        )
    at = _at(place(False))
    if found := _LABEL.search(message):
        label = "NaN, or larger than an integer can be" if int(found[1]) == _OF_NAN else found[1]
        return DataError(
            f"A label{at} is {label}; the loss takes whole numbers from 0 to {int(found[2]) - 1}, one for each of the "
            f"{found[2]} values of the model's output. Correct the labels, or give the model an output for each class. "
            "For labels that should not count: keras.losses.SparseCategoricalCrossentropy(ignore_class=...)."
        )
    if found := _INDEX.search(message):
        value, size, node = found.groups()
        return DataError(
            f"An index{at} is {value}, but there are {size} entries: 0 to {int(size) - 1} ({_layer(node)}). Correct "
            "the data, or give the layer as many entries as the data has."
        )
    if asserted := asserted_rows(message):
        text, number = asserted
        where = place(False) if number < 0 else f"batch {number}"
        return DataError(f"{text} ({where[:1].upper()}{where[1:]}, counted from 0.)" if where else text)
    if _OTHER_SHARES in message:
        return DataError(
            "Keras's own evaluate, in a callback, cannot divide its first batch equally among the replicas. Call "
            "mk.evaluate(self.model, ...) there, or give fit validation_data."
        )
    if found := _TEXT.search(message):
        return DataError(
            f"A tensor of the data is text{at}, where {found[1]} is needed: inputs, targets or weights. Turn text into "
            "numbers in the dataset, with keras.layers.StringLookup in its map, say."
        )
    if found := _SHAPE.search(message):
        shape, wanted = found.groups()
        return DataError(
            f"An input of the model has the shape {shape}{at}, in a replica's rows; the model takes {wanted}. All "
            "batches of the data must have that shape, except for their rows."
        )
    if found := _SIZES.search(message):
        said, node = found.groups()
        return DataError(f"{said} ({_layer(node)}{at}.) {ANY_ROWS}")
    return None


def _at(where: str) -> str:
    return f" in {where} (counted from 0)" if where else ""


def _of_python(message: str, at: str) -> str:
    """Take out of TensorFlow's words what a Python function of the data raised, and its last line of code."""
    before, _, after = message.partition(_TRACEBACK)
    paragraphs = re.split(r"\n\s*\[\[{{node", after)[0].strip("\n").split("\n\n")
    frames = [number for number, text in enumerate(paragraphs) if text.lstrip("\n").startswith('  File "')]
    raised = "\n\n".join(paragraphs[frames[-1] + 1 :]).strip() if frames else before.strip().splitlines()[-1]
    if named := _NAMED.match(raised):
        return f"{raised[named.end() :]}\n(The data raised this{at}.)"
    places = re.findall(r'  File "([^"]+)", line (\d+), in (\S+)', after)
    own = [place for place in places if not re.search(r"[/\\](site|dist)-packages[/\\]|__autograph_gen", place[0])]
    code = "{}, line {}, in {},".format(*own[-1]) if own else "A function of the data"
    return f"{raised}\n({code} raised this{at}.)"


def _layer(node: str) -> str:
    """Return the layer's part of the name of a node within functions and loops."""
    return re.sub(r"^(.*/)?(_\d+|cond|body|while|[^/]*PartitionedCall[^/]*)/", "", node)
