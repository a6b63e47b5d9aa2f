"""What only a process of its own shows: memory, a disk that takes no more, exit codes; each section prints a line.

Arguments: none; the folders "full" and "left" come into the folder where it runs. It leaves by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import zipfile
from pathlib import Path

import numpy as np

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.position import Position

sys.path.append(str(Path(__file__).parents[1]))
from checkpoint_helpers import forge, header, names

# --- files that take no memory to write

value = np.zeros(4, "float32")
wanted = [{"path": "v", "shape": [4], "dtype": "float32"}]
about = {"format": 1, "variables": wanted, "position": Position(steps=1).as_json()}


def compressed(path):
    forge(path, about, {}, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("0.npy", "w") as entry:
        entry.write(header("<f4", 5 * 10**8))
        for _ in range(200):
            entry.write(bytes(10**7))


def directory(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
        info = archive.infolist()[0]
        archive.filelist.extend([info] * 150_000)
        archive._didModify = True


def many_lists(path):
    forge(path, b"[" + b"[]," * (2 * 10**6) + b"0]", {"0": value})


def many_dicts(path):
    forge(path, b"[" + b'{"":0},' * 10**6 + b"0]", {"0": value})


def many_variables(path):
    forge(path, {**about, "variables": wanted * 100_000}, {"0": value})


def declared(path):
    forge(path, about, {"0": header("<f4", 10**15)})


def long_description(path):
    forge(path, about, {"0": header("<f4", 4)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.npy", header("|u1", 10**12))
        archive.writestr("0.npy", header("<f4", 4))


def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def memory(bomb):
    path = Path("step-0000000001.npz")
    bomb(path)
    size = path.stat().st_size
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak()
    try:
        checkpoint_file.read(path, wanted)
    except checkpoint_file.DamagedError:
        return peak() - before < 4 * size + 200e6


bombs = (compressed, directory, many_lists, many_dicts, many_variables, declared, long_description)
print(json.dumps({bomb.__name__: memory(bomb) for bomb in bombs}))

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
