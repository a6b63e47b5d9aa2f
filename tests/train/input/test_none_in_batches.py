"""Batches that end in None, which Keras takes for targets and sample weights that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import assert_same_logs, keras_twin, line_net, plain_dataset, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _unweighted(x: Any, y: Any) -> Any:
    return x, y, None


def test_no_sample_weights(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), line_net, metrics=["mae"], weighted_metrics=["mse"])
    first, theirs = values_of(loop), plain_dataset(*numbers, batch=20).map(_unweighted)
    model = keras_twin(line_net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mse"])
    expected = model.fit(theirs, epochs=2, validation_data=theirs, verbose=0).history
    outputs = model.predict(numbers[0], verbose=0)
    for ours in (theirs, mk.data.resident(mk.data.arrays(*numbers), global_batch_size=20, map=_unweighted)):
        set_values(loop, first)
        loop.warm_up(ours)
        found = loop.fit(ours, epochs=2, validation_data=ours, verbose=0, callbacks=[mk.checks.NanWatch()]).history
        assert_same_logs(found, expected, rtol=1e-5)
        np.testing.assert_allclose(loop.predict(ours), outputs, rtol=1e-4, atol=1e-5)


def test_no_targets_to_predict(line: Any, numbers: Any) -> None:
    plain = plain_dataset(numbers[0], batch=20)
    expected = line.predict(plain)
    for batches in (plain.map(lambda x: (x, None)), plain.map(lambda x: (x, None, None))):
        np.testing.assert_array_equal(line.predict(batches), expected)


def test_class_weights(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], np.zeros([60, 1], "int64"), batch=20)
    make_loop(("mirrored", 2), line_net).fit(data.map(_unweighted), class_weight={0: 2.0}, verbose=0)


def test_a_custom_loop_and_a_check(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(*numbers, batch=20).map(_unweighted)
    loop = make_loop(("mirrored", 2), line_net)
    assert [len(batch) for batch in mk.data.distribute(data, loop.strategy)] == [2, 2, 2]
    assert mk.checks.find_non_finite(loop, next(iter(data))) is None


@pytest.mark.parametrize(
    "spoil", [lambda x, y: (x, None, y[:, 0]), lambda x, y: ({"a": x, "b": None}, y)], ids=["targets", "inputs"]
)
def test_none_elsewhere_is_refused_by_name(spoil: Any, line: Any, numbers: Any) -> None:
    with pytest.raises(StepError, match="may end in None"):
        line.fit(plain_dataset(*numbers, batch=20).map(spoil))
