"""What only a process of its own shows: a disk that takes no more, exit codes; each section prints a line.

Arguments: none; the folders "full" and "left" come into the folder where it runs. It leaves by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.checkpoints import file as checkpoint_file

sys.path.append(str(Path(__file__).parents[1]))
from checkpoint_helpers import names

# --- a disk that takes no more: a limit on the size of files; what it does to zipfile's own clean-up is real

strategy = mk.testing.virtual_replicas(2)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(400), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
data = mk.data.batches(mk.data.arrays(np.ones((40, 8), "float32"), np.ones((40, 1))), global_batch_size=4)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=1)


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def at(wanted, act):
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = lambda batch, logs=None: batch == wanted and act()
    return callback


try:
    loop.fit(data, callbacks=[at(5, lambda: limit(20_000)), mk.train.Checkpoints("full", every=2)], verbose=0)
except mk.errors.FileError as error:
    limit(resource.RLIM_INFINITY)
    for step in (2, 4):
        checkpoint_file.read(checkpoint_file.path_of(Path("full"), step))
    print(json.dumps([names(Path("full")), str(error)]))

# --- signals


def leave(number, folder):
    loop.position = mk.train.Position()
    send = at(2, lambda: os.kill(os.getpid(), number))
    loop.fit(data, callbacks=[send, mk.train.Checkpoints(folder)], verbose=0)


try:
    leave(signal.SIGTERM, "left")
except SystemExit as left:
    print(json.dumps([names(Path("left")), left.code]), flush=True)
leave(signal.SIGINT, "interrupted")
