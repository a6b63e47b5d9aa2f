"""Profiling: a trace of ten training steps for TensorBoard's profile page.

Run: python examples/by_feature/profiling.py
Prints the steps that were traced, the size of the trace, and whether it has the model's operations. To view the trace,
install xprof and start tensorboard --logdir with its folder. A table of the parts of a step: benchmarks/anatomy.py.
"""

import tempfile
from pathlib import Path

import keras

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=2560, test=100)
train = mk.data.batches(digits.train, global_batch_size=64, shuffle=True, seed=0)
with strategy.scope():
    model, optimizer = mk.models.create("mlp"), keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
loop = mk.train.Loop(
    strategy, mk.train.Step(model, optimizer, loss=loss), steps_per_call=10
)  # a trace is of whole calls
loop.warm_up(train)  # otherwise the first steps would show the compilation

with tempfile.TemporaryDirectory() as folder:  # yours: "runs/profile"
    profile = mk.timing.profile(folder, steps=(10, 20))
    loop.fit(train, epochs=1, callbacks=[profile], verbose=0)
    first, end = profile.profiled
    (trace,) = Path(folder).rglob("*.xplane.pb")
    found = [name for name in ("MatMul", "Softmax", "Conv2D") if name.encode() in trace.read_bytes()]
    print(f"traced: steps {first} to {end - 1} of {loop.position.steps}")
    print(f"{trace.name.split('.', 1)[1]}: {trace.stat().st_size / 1e6:.1f} MB, with", *found)  # this net has no Conv2D
