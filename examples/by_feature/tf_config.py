"""TF_CONFIG written by hand: two worker processes on this machine, each with the addresses of both and its own index.

Run: python examples/by_feature/tf_config.py
Prints the cluster that each worker detected, and that both end with the weights that one process trains alone. On a
cluster, each machine has its own address. Under Slurm, TF_CONFIG is not needed; `python -m mirrorkit launch` writes it
for you.
"""

import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np

import mirrorkit as mk


def train():
    strategy = mk.strategy.create("auto", devices="cpu")  # "multi_worker" where TF_CONFIG names two workers
    digits = mk.data.synthetic(train=1000, test=100)
    train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = mk.models.create("linear"), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    report = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss)).fit(train, epochs=3, verbose=0)
    size = sum(np.abs(weight).sum() for weight in model.get_weights())
    print(f"{mk.strategy.describe(strategy)}: loss {report.history['loss'][-1]:.5f}, sum of |weights| {size:.3f}")


if "TF_CONFIG" in os.environ:
    print(mk.cluster.detect())
    train()
else:
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]  # two ports that nobody uses
    cluster = {"worker": [f"127.0.0.1:{port.getsockname()[1]}" for port in free]}  # the same for both
    for port in free:
        port.close()
    both = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        both.append(subprocess.Popen([sys.executable, __file__], env=environment, stdout=subprocess.PIPE, text=True))
    for worker in both:
        print(worker.communicate()[0], end="")
    if any(worker.returncode for worker in both):
        sys.exit("A worker failed; its error stands above.")
    print("alone:")
    train()
