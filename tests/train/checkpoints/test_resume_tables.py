"""Tables that are updated in place: saved, restored and gone on with as all other variables, either way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_helpers import check_resumed
from table_helpers import SIZE, UNEVEN, WIDTH, batches, net, words

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.variables import copies

o = keras.optimizers
pytestmark = pytest.mark.usefixtures("small_tables")


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(
    make_loop: Any, tmp_path: Path, assert_replicas_equal: Any
) -> None:
    loop = make_loop(("mirrored", 3), net, lambda: o.Adam(0.05), sparse_embeddings="lazy", steps_per_call=1)
    check_resumed(loop, batches(*words(UNEVEN)), tmp_path, every=2, at=[7], epochs=2)
    assert_replicas_equal(loop)


@pytest.mark.slow
def test_replicas_on_cpus_share_what_is_restored(make_loop: Any, tmp_path: Path) -> None:
    """Until one of them writes: two of a large table would be in memory beside the one that was read."""
    trained, resumed = (make_loop(("mirrored", 2), net, lambda: o.Adagrad(0.05)) for _ in range(2))
    trained.fit(batches(*words(UNEVEN)), epochs=1, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    resumed.step.build(resumed.strategy)
    resumed.restore(tmp_path)
    of_table = [copies(v) for v in resumed.step.variables if tuple(v.shape) == (SIZE, WIDTH)]
    assert len(of_table) == 2
    for pair in of_table:
        assert np.shares_memory(*[np.asarray(tf.convert_to_tensor(copy)) for copy in pair])
