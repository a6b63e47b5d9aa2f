"""Rows of all replicas in one tensor: on two replicas of one process and on two workers what one device has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gathering_worker
import numpy as np
import pytest
import tensorflow as tf
from launching import launched

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    launched(HERE / "gathering_worker.py", folder, folder=folder)
    return [json.loads((folder / f"found{i}.json").read_text()) for i in (0, 1)]


def assert_gathered(found: list[dict[str, Any]], replicas: slice) -> None:
    """What the replicas found, against one device that has all rows; their gradients in turn."""
    for (cut, size), of_sizes in zip(gathering_worker.ROWS, found, strict=True):
        x = tf.constant(np.arange(-8.0, 7.0, dtype="float32").reshape(5, 3)[: cut + size])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.matmul(x, x, transpose_b=True) ** 2)
        expected = tape.gradient(loss, x).numpy()
        assert of_sizes["gathered"] == {
            "x": x.numpy().tolist(),
            "bytes": (x.numpy() + 8).astype(int).tolist(),
            "sign": (x.numpy() > 0).tolist(),
            "half": x.numpy().tolist(),
        }
        assert of_sizes["dtypes"] == {"x": "float32", "bytes": "uint8", "sign": "bool", "half": "float32"}
        parts = np.split(expected, [cut])[replicas]
        for gradient, part in zip(of_sizes["gradients"], parts, strict=True):
            np.testing.assert_allclose(np.reshape(gradient, part.shape), part, rtol=1e-5)


def test_two_replicas_gather_all_rows_and_get_the_gradient_of_their_own(strategy_of):
    assert_gathered(gathering_worker.gathered(strategy_of("mirrored", 2)), slice(0, 2))


@pytest.mark.slow  # two workers
def test_so_do_two_workers(workers):
    for worker, found in enumerate(workers):
        assert_gathered(found["gathered"], slice(worker, worker + 1))


@pytest.mark.slow
def test_synchronized_layers_train_on_bytes_in_a_custom_loop_on_workers(workers, strategy_of):
    assert workers[0]["trained"] == workers[1]["trained"]
    expected = gathering_worker.trained(strategy_of("mirrored", 2))
    assert len(expected) == 3
    np.testing.assert_allclose(workers[0]["trained"], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_loss_over_the_whole_batch_on_workers(workers, strategy_of):
    """As on one device, with validation, where the last batch leaves one of the workers without an image."""
    assert workers[0]["contrastive"] == workers[1]["contrastive"]
    for found, expected in zip(
        workers[0]["contrastive"], gathering_worker.contrastive(strategy_of("one_device", 1)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
