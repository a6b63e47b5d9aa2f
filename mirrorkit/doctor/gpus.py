"""Why TensorFlow does not use a GPU: conclusions from what was looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mirrorkit.doctor.finding import Finding

_INSTALL = (
    "pip uninstall tensorflow-cpu, and pip install 'tensorflow[and-cuda]' in this environment; unset LD_LIBRARY_PATH "
    "if it names other versions."
)
_REPAIR = (
    "In a container: --gpus all, and NVIDIA_DRIVER_CAPABILITIES=compute,utility. Elsewhere repair the driver "
    "(nvidia-smi must list the GPUs), and see that LD_LIBRARY_PATH names no other libcuda."
)
_NEWER = (
    "Install a newer TensorFlow, or use NVIDIA's container (nvcr.io/nvidia/tensorflow). Otherwise the first step takes "
    "half an hour, or fails with CUDA_ERROR_INVALID_PTX or CUDA_ERROR_INVALID_HANDLE."
)
# What TensorFlow logs, and only logs, where it leaves GPUs out; without the time and place in front.
_COMPLAINT = re.compile(
    r"^(?:(?:[IWEF]\d{4}|\d{4}-\d\d-\d\d) .*?\] )?(.*(?:dlopen|dynamic library|cuInit|cuda drivers|GPU libraries).*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Facts:
    """What the driver, the system and TensorFlow say about GPUs."""

    driver: int  # GPUs that nvidia-smi lists
    device_files: int  # /dev/nvidia0 and so on
    tensorflow: int  # GPUs that TensorFlow found
    built_with_cuda: bool
    capabilities: Sequence[str] = ()  # of the GPUs that TensorFlow found: "9.0"
    built_for: Sequence[str] = ()  # "sm_80", "compute_90"


def findings(facts: Facts, *, log: str, visible: str | None, workers_here: int) -> Iterator[Finding]:
    """Say whether TensorFlow uses the GPUs of this machine, and if not why.

    `log` is TensorFlow's, from when it looked for them; `visible` is CUDA_VISIBLE_DEVICES.
    """
    # The files are those of the whole machine, also where Slurm or a container leaves this process a part of it.
    there = facts.driver or facts.device_files
    if facts.tensorflow >= there:
        yield Finding("GPUs", "ok", f"{facts.tensorflow or 'none'} in this machine")
    elif facts.tensorflow >= _left_visible(visible, there):
        found = f"CUDA_VISIBLE_DEVICES={visible!r} hides {there - facts.tensorflow} of {there} GPUs"
        yield Finding("GPUs", "warning", found, "Unset CUDA_VISIBLE_DEVICES, or set it to their numbers: 0,1")
    else:
        of = "" if facts.built_with_cuda else "; it is built for the CPU alone"
        complaints = dict.fromkeys(line.strip(" .") for line in _COMPLAINT.findall(log))
        said = f"; it says: {'; '.join(complaints)}" if complaints else ""
        is_of_driver = not facts.driver or re.search("cuInit|cuda drivers", log)
        cure = _REPAIR if is_of_driver and facts.built_with_cuda else _INSTALL
        yield Finding("GPUs", "failure", f"TensorFlow uses {facts.tensorflow} of {there}{of}{said}", cure)
    # Kernels run on all GPUs with the same number before the dot. On newer ones the driver compiles them, or cannot.
    with_kernels = {re.sub(r"\D", "", name)[:-1] for name in facts.built_for}
    if facts.built_for and (new := {one for one in facts.capabilities if one.split(".")[0] not in with_kernels}):
        found = (
            f"compute capability {', '.join(sorted(new))}; this TensorFlow has kernels for {', '.join(facts.built_for)}"
        )
        yield Finding("GPU kernels", "warning", found, _NEWER)
    if facts.tensorflow and workers_here > 1 and visible is None:
        found = f"each of the {workers_here} workers on this machine would take all {facts.tensorflow} GPUs"
        cure = "Give each its own: srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES where the workers are started."
        yield Finding("GPU memory", "failure", found, cure)


def _left_visible(visible: str | None, there: int) -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES leaves: CUDA stops at the first name that it does not know."""
    if visible is None:
        return there
    names = [name.strip() for name in visible.split(",")]
    known = takewhile(lambda name: int(name) < there if name.isdigit() else name not in ("", "-1"), names)
    return len(list(known))
