"""Run an example as it stands, and leave behind the weights that it has after certain training steps; run by the tests.

Run: python -m mirrorkit launch --workers 2 recorded_example.py FOLDER "1 10 469" mnist_loop.py --epochs 2
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.step.supervised import Supervised


def main() -> None:
    folder, wanted, script, *arguments = sys.argv[1:]
    steps = {int(step) for step in wanted.split()}
    logs, create = Supervised.logs, mk.strategy.create
    worker = 0

    def recorded(step: Supervised, *args: Any) -> Any:
        """`Supervised.logs`, which every loop calls for its numbers; the weights are then as they are after a step."""
        if tf.executing_eagerly() and (done := int(step.model.optimizer.iterations.numpy())) in steps:
            steps.remove(done)
            values = [variable.numpy() for variable in step.model.trainable_variables]
            np.savez(Path(folder, f"step{done}-worker{worker}.npz"), *values)
        return logs(step, *args)

    def created(*args: Any, **options: Any) -> Any:
        nonlocal worker
        strategy = create(*args, **options)
        worker = mk.strategy.worker_index(strategy)
        return strategy

    Supervised.logs = recorded  # type: ignore[method-assign]
    mk.strategy.create = created
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
