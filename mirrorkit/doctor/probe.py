"""What needs TensorFlow: a child process imports it, looks for GPUs and computes on every device.

Run as a module it is that child: its answer is a line of stdout, and TensorFlow's log is stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from glob import glob

from mirrorkit import processor
from mirrorkit.doctor import gpus
from mirrorkit.doctor.finding import Finding, of_message
from mirrorkit.errors import MirrorkitError
from mirrorkit.subprocesses import with_mirrorkit

SECONDS = 60.0  # for the child to answer
_ANSWER = "answer: "  # what its line begins with: TensorFlow's plugins may print too
_REINSTALL = "pip install --force-reinstall tensorflow"
_HANGS = (
    "Does a driver (try nvidia-smi) or a network file system hang, or does TensorFlow compile for a GPU that is newer "
    "than itself?"
)
_DIED = (
    "The lines above, if any, are TensorFlow's own. -4 (SIGILL): this processor lacks AVX, which TensorFlow's wheels "
    f"need. -9 (SIGKILL): is there too little memory? Else run: {_REINSTALL}"
)


def devices(require: str | None, *, workers_here: int) -> Iterator[Finding]:
    """Load TensorFlow in a child process, look for GPUs, compute on every device, and look at oneDNN."""
    # Its log is read; and it must not fail for want of memory that another process holds.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    command = [sys.executable, "-m", __name__, json.dumps(require)]
    try:
        child = subprocess.run(
            command,
            env=with_mirrorkit(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        yield Finding("devices", "failure", f"TensorFlow gave no answer within {SECONDS:g} s", _HANGS)
        return
    _, found, text = child.stdout.rpartition(f"\n{_ANSWER}")
    if child.returncode or not found:
        how = f"ended with {child.returncode}{'' if found else ', without an answer'}"
        lines = [f"the process that loads TensorFlow {how}", *child.stderr.splitlines()[-5:]]
        yield Finding("devices", "failure", "\n".join(lines), _DIED)
        return
    answer = json.loads(text.partition("\n")[0])
    yield from (Finding(**finding) for finding in answer["findings"])
    if answer["gpus"] is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        facts = gpus.Facts(**answer["gpus"])
        yield from gpus.findings(facts, log=child.stderr, visible=visible, workers_here=workers_here)


def main() -> None:
    """Print the answer of the child process: findings, and facts about GPUs, or null where TensorFlow does not load."""
    findings, facts = _answer(json.loads(sys.argv[1]))
    answer = {"findings": [asdict(finding) for finding in findings], "gpus": facts and asdict(facts)}
    print(f"\n{_ANSWER}{json.dumps(answer)}")  # after what was printed without a newline


def _answer(require: str | None) -> tuple[list[Finding], gpus.Facts | None]:
    start = time.perf_counter()
    try:
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
    except Exception as error:  # NumPy or protobuf of the wrong version raise other errors than ImportError
        what = f"TensorFlow cannot be imported: {type(error).__name__}: {error}"
        return [Finding("import", "failure", what, _REINSTALL)], None
    findings = [Finding("import", "ok", f"TensorFlow {tf.__version__} in {time.perf_counter() - start:.1f} s")]
    try:
        from mirrorkit import devices
    except MirrorkitError as error:
        return [*findings, of_message("Keras", "failure", str(error))], None
    try:
        verified = devices.verify(require=require).devices
        findings += [Finding("devices", "ok", f"{d.name} computes correctly ({d.model})") for d in verified]
    except MirrorkitError as error:
        cure = "Run nvidia-smi; then pip install 'tensorflow[and-cuda]', whose libraries fit TensorFlow."
        findings.append(of_message("devices", "failure", str(error), cure=cure))
    if not found:
        findings += _onednn()
    details = map(tf.config.experimental.get_device_details, found)
    facts = gpus.Facts(
        driver=len(devices.nvidia_smi("name")),
        device_files=len(glob("/dev/nvidia[0-9]*")),
        tensorflow=len(found),
        built_with_cuda=bool(tf.test.is_built_with_cuda()),
        capabilities=[".".join(map(str, of.get("compute_capability", ["unknown"]))) for of in details],
        built_for=tf.sysconfig.get_build_info().get("cuda_compute_capabilities", []),
    )
    return findings, facts


def _onednn() -> Iterator[Finding]:
    """Say so where TensorFlow does not use oneDNN on a processor that gains by it."""
    from mirrorkit.devices import onednn

    if "avx2" in processor.flags() and onednn.enabled() is False:
        found = "off; convolutions on this processor are often much slower without it"
        yield Finding("oneDNN", "warning", found, f"export {onednn.VARIABLE}=1, and compare")


if __name__ == "__main__":
    main()
