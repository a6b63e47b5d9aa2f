"""What needs TensorFlow: `Probe` lives in a child process with a time limit, and answers with findings."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import statistics
import time
from glob import glob
from typing import Any

from mirrorkit import processor
from mirrorkit.doctor import gpus
from mirrorkit.doctor.finding import Finding, of_message
from mirrorkit.errors import MirrorkitError
from mirrorkit.remote import Member, Remote

SECONDS = 45.0  # for a child process to start TensorFlow and answer
_SMALL, _LARGE = 1024, 4 * 2**20  # float32 numbers in a message: 4 KiB, 16 MiB
_REPEATS = 5
_REINSTALL = "pip install --force-reinstall tensorflow"
_NO_SUM = (
    "Look at the network between the workers (between GPUs: at NCCL_DEBUG=INFO), then compare communication='ring'."
)


def devices(asked: str | None, require: str | None, *, workers_here: int) -> list[Finding]:
    """Load TensorFlow in a child process, look for GPUs, compute on every device, and look at oneDNN."""
    growth = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    return _in_child("devices", "devices", asked=asked, require=require, growth=growth, workers_here=workers_here)


def all_reduce(asked: str | None, *, start_timeout: float) -> list[Finding]:
    """Make the strategy in a child process, sum over all replicas, and check and time that."""
    return _in_child("all-reduce", "all_reduce", more=start_timeout, asked=asked, start=start_timeout)


def _in_child(name: str, method: str, *, more: float = 0.0, **arguments: Any) -> list[Finding]:
    # Its log is read; and it must not fail for want of memory that another process holds.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    with Remote(f"{__name__}:Probe", Member(environment=environment), timeout=SECONDS + more) as remote:
        try:
            found: list[Finding] = remote.call(method, **arguments)
            with contextlib.suppress(MirrorkitError):  # the result is there
                remote.call("leave")
        except MirrorkitError as error:
            found = [_died(name, str(error))]
    return found


def _died(name: str, message: str) -> Finding:
    """Say how the process ended, with its last lines."""
    what, _, log = message.removeprefix(f"{__name__}:Probe ").removeprefix("failed: ").partition("\nEnd of its output:")
    cure = "The lines above, if any, are TensorFlow's own; between GPUs NCCL_DEBUG=INFO says more."
    if "no answer" in what:
        cure = (
            "Does a driver (try nvidia-smi) or a network file system hang, or does TensorFlow compile for a GPU that "
            "is newer than itself?"
        )
    elif match := re.fullmatch(r"the process ended with -(\d+)", what):
        name_of_signal = signal.Signals(int(match[1])).name
        what = f"the process was ended by {name_of_signal}"
        reasons = {
            "SIGILL": "This processor lacks AVX, which TensorFlow's wheels need.",
            "SIGKILL": "Is there too little memory (of a container, or a Slurm job)?",
        }
        cure = reasons.get(name_of_signal, f"Its last lines are above. Run: {_REINSTALL}.")
    return Finding(name, "failure", "\n".join([what, *log.strip().splitlines()[-5:]]), cure)


class Probe:
    """The checks that need TensorFlow; their arguments and answers can be pickled."""

    def __init__(self) -> None:
        self._strategy: Any = None

    def devices(self, *, asked: str | None, require: str | None, growth: bool, workers_here: int) -> list[Finding]:
        """Return the findings about TensorFlow and the devices."""
        start, log_size = time.perf_counter(), _log_size()
        try:
            import tensorflow as tf

            found_gpus = len(tf.config.list_physical_devices("GPU"))
        except Exception as error:
            found = f"TensorFlow cannot be imported: {type(error).__name__}: {error}"
            return [Finding("import", "failure", found, _REINSTALL)]
        findings = [Finding("import", "ok", f"TensorFlow {tf.__version__} in {time.perf_counter() - start:.1f} s")]
        try:
            from mirrorkit import devices
        except MirrorkitError as error:  # Keras cannot be used
            return [*findings, of_message("import", "failure", str(error))]
        facts = gpus.Facts(
            driver=devices.nvidia_smi("name", "memory.total", "memory.used"),
            device_files=len(glob("/dev/nvidia[0-9]*")),
            tensorflow=found_gpus,
            built_with_cuda=bool(tf.test.is_built_with_cuda()),
            log=_log_since(log_size),
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            growth=growth,
            workers_here=workers_here,
        )
        findings += gpus.findings(facts)
        try:
            if asked is not None:
                devices.resolve(asked)
            verified = devices.verify(require=require).devices
            findings += [Finding("devices", "ok", f"{d.name} computes correctly ({d.model})") for d in verified]
        except MirrorkitError as error:
            cure = "Run nvidia-smi; then pip install 'tensorflow[and-cuda]', whose libraries fit TensorFlow."
            findings.append(of_message("devices", "failure", str(error), cure=cure))
        findings.append(onednn(uses_gpus=found_gpus > 0))
        return findings

    def all_reduce(self, *, asked: str | None, start: float) -> list[Finding]:
        """Sum known numbers over all replicas; compare each element with the exact sum."""
        from mirrorkit import strategy as strategies

        name = "all-reduce"
        try:
            self._strategy = strategies.create("auto", devices=asked, start_timeout=start)
            with strategies.naming_lost_workers(self._strategy):
                return [_summed(name, self._strategy)]
        except MirrorkitError as error:
            return [of_message(name, "failure", str(error))]
        except SystemExit as left:
            return [Finding(name, "ok", f"served the chief until it was done (exit code {left.code})")]

    def leave(self) -> None:
        """Wait until all workers have their sums: one that ends earlier would be missed."""
        from mirrorkit import strategy as strategies

        if self._strategy is not None:
            strategies.wait_for_all(self._strategy, "doctor")
            time.sleep(0.5)  # the others may still be receiving


def onednn(*, uses_gpus: bool) -> Finding:
    """Say whether TensorFlow uses oneDNN on a processor that gains by it."""
    from mirrorkit.devices import onednn as choice

    if choice.enabled() is not False or uses_gpus or "avx2" not in processor.flags():
        states = {True: "on", False: "off, which does not matter here", None: "TensorFlow does not say"}
        return Finding("oneDNN", "ok", states[choice.enabled()])
    if choice.left_off():
        return of_message("oneDNN", "warning", choice.HINT)
    found = f"off, by {choice.VARIABLE}={os.environ[choice.VARIABLE]}; convolutions are often much slower without it"
    return Finding("oneDNN", "warning", found, f"export {choice.VARIABLE}=1, and compare")


def _summed(name: str, strategy: Any) -> Finding:
    import numpy as np
    import tensorflow as tf

    from mirrorkit import strategy as strategies
    from mirrorkit.strategy import is_parameter_server
    from mirrorkit.train import all_reduce

    if is_parameter_server(strategy):
        return _computed_by_workers(name, strategy)
    replicas = strategy.num_replicas_in_sync
    where = strategies.describe(strategy)
    if replicas == 1:
        return Finding(name, "ok", f"{where}: nothing to sum; --devices cpu:2 rehearses it")

    def on_replica(message: Any) -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return all_reduce(message * tf.cast(number + 1, tf.float32))

    @tf.function(autograph=False)
    def summed(message: Any) -> Any:
        return strategy.run(on_replica, args=(message,))

    seconds = {}
    for length in (_SMALL, _LARGE):
        own = np.arange(length, dtype=np.float32) % 31  # whole numbers, whose sums are exact in any order
        expected = own * (replicas * (replicas + 1) // 2)
        message, times = tf.constant(own), []
        for repeat in range(1 + _REPEATS):  # the first compiles
            start = time.perf_counter()
            results = strategy.experimental_local_results(summed(message))
            values = [result.numpy() for result in results] if repeat in (0, _REPEATS) else []
            for result in results:
                float(result[-1])  # wait for it
            times.append(time.perf_counter() - start)
            wrong = sum(not np.array_equal(value, expected) for value in values)
            if wrong:
                found = f"{where}: the sum of {length * 4:,} bytes is wrong on {wrong} of {len(values)} replicas here"
                return Finding(name, "failure", found, _NO_SUM)
        seconds[length] = statistics.median(times[1:-1])
    speed = _LARGE * 4 / seconds[_LARGE] / 1e9
    found = (
        f"{where}: sums are exact; {_SMALL * 4 // 1024} KiB in {seconds[_SMALL] * 1e3:.2f} ms, "
        f"{_LARGE * 4 // 2**20} MiB in {seconds[_LARGE] * 1e3:.1f} ms ({speed:.2f} GB/s)"
    )
    return Finding(name, "ok", found)


def _computed_by_workers(name: str, strategy: Any) -> Finding:
    """Let the workers add to a variable on a parameter server."""
    import tensorflow as tf

    from mirrorkit.strategy import describe

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0, dtype=tf.int64)

    @tf.function(autograph=False)
    def add() -> None:
        total.assign_add(1)

    times = 20
    for _ in range(times):
        coordinator.schedule(add)
    coordinator.join()
    if int(total) != times:
        found = f"{describe(strategy)}: {times} additions gave {int(total)}"
        return Finding(name, "failure", found, "Look at the logs of the workers and of the parameter servers.")
    return Finding(name, "ok", f"{describe(strategy)}: the workers' {times} additions arrived")


def _log_size() -> int:
    """Return how much this process's standard error holds, where that is a file, as it is in a child process."""
    about = os.fstat(2)
    return about.st_size if stat.S_ISREG(about.st_mode) else -1


def _log_since(size: int) -> str:
    """Return what was written to it since, by TensorFlow's C++ code too; on Linux, where GPUs are."""
    if size < 0:
        return ""
    with contextlib.suppress(OSError), open("/proc/self/fd/2", "rb") as log:
        log.seek(size)
        return log.read().decode(errors="replace")
    return ""
