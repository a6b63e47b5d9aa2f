"""Workers with other callbacks than each other, and a chief that may not write; `test_differing_callbacks` runs it.

It writes the error of each case to found0.json or found1.json in the folder that it is given.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mirrorkit as mk
from mirrorkit import files
from mirrorkit._keras import keras


class Chiefs(mk.train.LoopCallback):
    """One that only the chief needs."""

    chief_only = True


def main() -> None:
    """Try every case."""
    folder = Path(sys.argv[1])
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=2)
    data = mk.data.batches(mk.data.arrays(np.ones((8, 3), "float32"), np.ones((8, 1), "float32")), global_batch_size=2)
    if me == 0:
        for name, process in (("lives", os.getppid()), ("dead", 2**22 + 1)):
            (folder / name).mkdir()
            about = {**json.loads(files.this_process()), "pid": process, "started": files._started(process) or 1}
            (folder / name / ".owner").write_text(json.dumps(about))
    cases: dict[str, list[Any]] = {
        "on the chief alone": [mk.train.Checkpoints(folder / "run")] * (me == 0),
        "on the other alone": [mk.train.Checkpoints(folder / "run")] * (me == 1),
        "another period": [mk.train.Checkpoints(folder / "run", every=2 + me)],
        "another check": [mk.checks.InSync() if me else mk.checks.NanWatch()],
        "another order": [mk.checks.InSync(), mk.checks.NanWatch()][:: 1 - 2 * me],
        "a living owner": [mk.train.Checkpoints(folder / "lives")],
        "a dead owner": [mk.train.Checkpoints(folder / "dead")],
        "the chief's own": [Chiefs()] * (me == 0) + [mk.checks.InSync()],
        "one of Keras": [keras.callbacks.EarlyStopping("loss")] * me,
    }
    found = {}
    for name, callbacks in cases.items():
        try:
            loop.fit(data, callbacks=callbacks, verbose=0)
            found[name] = "trained"
        except mk.errors.MirrorkitError as error:
            found[name] = str(error)
    (folder / f"found{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
