"""Run a script once for every task of a job, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirrorkit import stop_signals
from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.errors import ClusterError, JobError
from mirrorkit.launch import layout, ray_nodes
from mirrorkit.launch.job import HANGUP, Job
from mirrorkit.launch.output import tell
from mirrorkit.launch.ray_nodes import RayNodes, WorkerResources
from mirrorkit.launch.this_machine import ThisMachine

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *filter(None, [HANGUP]))


@checks_arguments(JobError)
def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    workers: int | tuple[int, int],
    ps: int = 0,
    chief: bool = False,
    max_restarts: int = 0,
    slots: str | None = None,
    wait: float = 300.0,
    devices_per_worker: str | None = None,
    grace: float = 30.0,
    module: bool = False,
    on: str | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: int = 0,
    spread: bool = False,
) -> int:
    """Run a Python script once for every task of a cluster on this machine, or on Ray, and return its exit code.

    ```python
    with open("train.py", "w") as script:
        script.write("import os; print(os.environ['TF_CONFIG'])")
    print(mk.launch.launch("train.py", workers=2))  # 0
    ```

    When a task fails, the others get SIGTERM, and SIGKILL 5 s later, since TensorFlow swallows SIGTERM. Then the whole
    job is restarted on new ports, up to `max_restarts` times; a script with checkpoints goes on from the newest.
    SIGTERM, SIGHUP and Ctrl-C are passed on to every task, and nothing is restarted. Tasks that still run `grace`
    seconds later, or at the second such signal, are killed. No task outlives this process, even if it is killed. Call
    it from the main thread.

    With parameter servers the job survives the failure of a worker. While the chief runs, only that worker is
    restarted, at its address; this counts as one of the `max_restarts`. If no restart is left, the others go on without
    it, as long as there are any workers.

    With `workers=(1, 4)` the number of workers may change while the job runs. It starts with the maximum. At a failure
    with no restart left, the job goes on with one worker less, down to the minimum. `slots` limits the number of
    workers. It is read every few seconds, and at SIGHUP, which then is not passed on. When the number changes, all
    tasks get SIGTERM, `mk.train.Checkpoints` saves, and the job restarts with the new number; this is not a failure.
    Every `Loop.fit` of such a job needs `Checkpoints`. When training resumes, a log line says after how many seconds,
    and how many steps were repeated.

    TensorFlow's servers listen on all interfaces of this machine, without authentication; a warning says so.

    With `on="ray"` the workers run on the nodes of a Ray cluster: the one that RAY_ADDRESS names, or this machine's.
    Each worker has a Ray actor with its share of a node. `workers=(1, 16)` takes as many as Ray has room for: a node
    that is lost or added changes the number, as `slots` does. A lost node is not a failure, if a checkpoint was saved
    since the last one was lost. The script, its data and its checkpoints must have the same path on every node.

    Args:
        script: a Python file, or the name of a module.
        arguments: the script's `sys.argv[1:]`.
        workers: number of workers, or its minimum and maximum.
        ps: number of parameter servers; adds a chief, which coordinates. When it exits, the job ends.
        chief: whether to add a chief, which trains as the first of the workers.
        max_restarts: how often to restart after a failure: the job, or with parameter servers a worker.
        slots: the most workers there is room for: a file with the number, or a command that prints it.
        wait: seconds to wait for room for the minimum number of workers.
        devices_per_worker: "cpu", or "gpu:1" for one GPU each; None divides the GPUs where there are enough.
        grace: seconds between a signal that is passed on and SIGKILL.
        module: whether `script` is a module, as in `python -m module`.
        on: None for this machine, "ray" for a Ray cluster, with workers alone (no `ps`, `chief`, `slots`).
        cpus_per_worker: CPUs that Ray reserves for each worker, and its number of TensorFlow threads.
        gpus_per_worker: GPUs that each worker sees. Only with Ray.
        spread: whether Ray spreads workers over nodes; otherwise it packs them on few. Only with Ray.

    Returns:
        0, or the exit code of the task that failed first; 128 + n when signal n killed it.

    Raises:
        JobError: no such script, no worker, or not enough room within `wait` seconds.
        ClusterError: not enough GPUs, no Ray cluster, or a system without process groups (Windows).
        ArgumentError: called outside of the main thread.
    """
    if not hasattr(os, "killpg"):
        raise ClusterError("launch needs process groups and POSIX signals, which this system lacks. Use Linux or WSL.")
    if not module and not Path(script).is_file():
        raise JobError(f"There is no script {str(script)!r}. Name a Python file.")
    command = [*(["-m"] if module else []), str(script), *arguments]
    job = Job(workers, max_restarts=max_restarts, wait=wait, grace=grace)
    share = WorkerResources(cpus_per_worker, gpus_per_worker, spread)
    whole_number("ps", ps, JobError, least=0)
    if ps and job.may_change:
        raise JobError(f"ps={ps} was asked for with workers={workers}: such a job goes on without a worker anyway.")
    if slots is not None and not job.may_change:
        raise JobError(f"slots={slots!r} needs a minimum and a maximum of workers, such as workers=(1, {job.most}).")
    if on == "ray":
        if ps or chief or slots or devices_per_worker:
            raise JobError(
                "on='ray' runs only workers, as many as its nodes have room for: leave out ps, chief, slots and "
                "devices_per_worker."
            )
        with ray_nodes.connected():
            return _run(job, RayNodes(command, job.events, job.most, share))
    if on is not None:
        raise JobError(f"on={on!r} is not known. Leave it out for this machine, or write on='ray'.")
    if share != WorkerResources():
        raise JobError("cpus_per_worker, gpus_per_worker and spread need on='ray'; here there is devices_per_worker.")
    _warn_of_servers()

    def environments(width: int) -> dict[str, dict[str, str]]:
        tasks = layout.clusters(width, ps=ps, chief=chief)
        return layout.environments(tasks, environ=os.environ, devices_per_worker=devices_per_worker)

    return _run(job, ThisMachine(command, environments, job.events, job.most, slots))


@checks_arguments(JobError)
def on_ray(
    function: Callable[[], Any],
    *,
    workers: int | tuple[int, int],
    max_restarts: int = 0,
    wait: float = 300.0,
    cpus_per_worker: int = 1,
    gpus_per_worker: int = 0,
    spread: bool = False,
    grace: float = 30.0,
) -> Any:
    """Call a function on every worker of a job on a Ray cluster, and return worker 0's result.

    ```python
    def train():
        ...   # a strategy, a step and a loop, as in a script
        return loop.fit(data, epochs=5).history


    history = mk.launch.on_ray(train, workers=(1, 16), max_restarts=3)
    ```

    The function takes no arguments (use `functools.partial`). Ray pickles it, so it may come from a notebook. Each
    worker is a new process. If this process is not yet connected to Ray (`ray.init()`), it is connected as by `launch`.
    The other arguments and the handling of failures are those of `launch`.

    Raises:
        JobError: the job failed, or there was not enough room within `wait` seconds.
        ClusterError: there is no Ray, or no such cluster.
        ArgumentError: the function cannot be pickled, or this is not the main thread.
    """
    job = Job(workers, max_restarts=max_restarts, wait=wait, grace=grace)
    share = WorkerResources(cpus_per_worker, gpus_per_worker, spread)
    command = ["-m", "mirrorkit.launch.called"]
    with ray_nodes.connected():
        code = _run(job, RayNodes(command, job.events, job.most, share, ray_nodes.pickled(function)))
    if job.interrupted == signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise JobError(f"The job on Ray ended with exit code {code}: the lines of its workers say why.")
    if job.result is None:
        raise JobError("The function did not return on worker 0: it ended its process with exit code 0.")
    return pickle.loads(base64.b64decode(job.result))


def _run(job: Job, placement: ThisMachine | RayNodes) -> int:
    """Run a job, and return its exit code. On Ray once connected: Ray catches signals too."""
    caught: list[int] = []

    def received(number: int, frame: object) -> None:
        caught.append(number)
        job.events.put(number)
        # The main thread takes no events while it waits to print what nobody reads. The tasks end too: see keeper.py.
        if number != HANGUP and caught.count(number) > 2 and job.events.qsize() > 1:
            os._exit(128 + number)

    before = stop_signals.catch(_SIGNALS, received)
    try:
        with contextlib.closing(placement):
            return job.run(placement)
    finally:
        stop_signals.put_back(before)


def _warn_of_servers() -> None:
    if len(socket.if_nameindex()) > 1:  # one is loopback
        tell(
            "warning: TensorFlow's servers in the tasks listen at all interfaces of this machine, without "
            "authentication: whoever reaches their ports can run operations, and read and write files, as this user. "
            "docs/security.md says how to close them"
        )
