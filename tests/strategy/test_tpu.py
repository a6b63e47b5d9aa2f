"""TPUs: no machine of these tests has one, so what is tested is finding one, giving up in time, and the shape rules."""

from __future__ import annotations

import logging
import socket
import time

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DeviceError, StepError
from mirrorkit.strategy import tpu
from mirrorkit.train.input import input as input_
from mirrorkit.train.requirements.data import require_static_batches
from mirrorkit.train.requirements.model import require_tpu_precision


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # bound, but nobody listens


@pytest.fixture
def silent_port():
    """Somebody listens and never says a word: TensorFlow would wait for many minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def no_tpu(monkeypatch):
    for name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tpu, "_LOCAL_DEVICES", ())


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"TPU_NAME": "mine"}, "mine"),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        ({"TPU_NAME": "local"}, "local"),
        ({"TPU_NAME": "", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.3:8470"}, "grpc://10.0.0.3:8470"),
        ({}, None),
    ],
)
def test_the_environment_says_where_a_tpu_is(no_tpu, environ, found):
    assert tpu.find(environ) == found


def test_devices_of_this_machine_count_where_the_library_is(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(tpu, "_LOCAL_DEVICES", (str(tmp_path / "accel[0-9]*"),))
    monkeypatch.setattr(tpu, "_libtpu_is_installed", lambda: True)
    assert tpu.find({}) == "local"
    monkeypatch.setattr(tpu, "_libtpu_is_installed", lambda: False)
    assert tpu.find({}) is None


def test_no_tpu_is_an_error_that_says_what_was_looked_at(no_tpu):
    with pytest.raises(DeviceError, match="KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        mk.strategy.create("tpu")


def test_an_address_at_which_nobody_listens(closed_port):
    started = time.monotonic()
    with pytest.raises(DeviceError, match=rf"Nobody listens at the TPU's address 127.0.0.1:{closed_port}"):
        mk.strategy.create("tpu", devices=f"grpc://127.0.0.1:{closed_port}")
    assert time.monotonic() - started < 10


def test_an_address_that_never_answers_is_given_up_in_time(silent_port):
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"within 0\.5 s \(start_timeout\)"):
        mk.strategy.create("tpu", devices=f"127.0.0.1:{silent_port}", start_timeout=0.5)
    assert time.monotonic() - started < 30
    assert tf.reduce_sum(tf.ones([3])).numpy() == 3, "TensorFlow still works in this process"


def test_fallback_takes_what_there_is_and_says_so_once(no_tpu, caplog):
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        strategy = mk.strategy.create("tpu", fallback=True)
    assert strategy.num_replicas_in_sync == 1
    said = [record.getMessage() for record in caplog.records if "No TPU" in record.getMessage()]
    assert len(said) == 1
    assert "none was found" in said[0]


def test_auto_takes_a_tpu_that_the_environment_names(no_tpu, monkeypatch, closed_port):
    monkeypatch.setenv("TPU_NAME", f"127.0.0.1:{closed_port}")
    with pytest.raises(DeviceError, match="Nobody listens"):
        mk.strategy.create("auto")
    assert mk.strategy.create("auto", fallback=True).num_replicas_in_sync == 1
    assert mk.strategy.create("auto", devices="cpu:2").num_replicas_in_sync == 2, "what was asked for is not a TPU"


def batch_of(size, *shape):
    return tf.TensorSpec([size, *shape]), tf.TensorSpec([size], tf.int64)


def test_batches_must_have_one_static_size():
    require_static_batches(batch_of(64, 28, 28, 1), 8)
    with pytest.raises(StepError, match="drop_remainder=True"):
        require_static_batches(batch_of(None, 28, 28, 1), 8)
    with pytest.raises(StepError, match="Pad or crop"):
        require_static_batches(batch_of(64, None), 8)
    with pytest.raises(StepError, match=r"batch of 60 .* 64"):
        require_static_batches(batch_of(60, 28), 8)


def test_loop_refuses_a_smaller_last_batch_on_a_tpu(monkeypatch, strategy_of):
    monkeypatch.setattr(input_, "is_tpu", lambda strategy: True)
    split = mk.data.arrays(tf.zeros([20, 3]).numpy(), tf.zeros([20], tf.int64).numpy())
    strategy = strategy_of("mirrored", 2)
    with pytest.raises(StepError, match="drop_remainder=True"):
        input_.Input(strategy, mk.data.batches(split, global_batch_size=8))
    input_.Input(strategy, mk.data.batches(split, global_batch_size=8, drop_remainder=True))
    input_.Input(strategy, mk.data.batches(split, global_batch_size=10))  # divides 20


def test_float16_is_refused_by_the_layer_s_name():
    half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_float16", name="half")])
    with pytest.raises(StepError, match=r"'half'.*mixed_bfloat16"):
        require_tpu_precision(half)
    require_tpu_precision(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_bfloat16")]))
