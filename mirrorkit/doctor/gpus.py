"""Why TensorFlow does not use a GPU, and whose memory it will take: conclusions from what was looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mirrorkit.doctor.finding import Finding

_INSTALL = (
    "pip install 'tensorflow[and-cuda]' in this environment, and unset LD_LIBRARY_PATH if it names other versions"
)
_SHARE = "TF_FORCE_GPU_ALLOW_GROWTH=true, or mk.devices.set_memory_growth() at the top of each program that shares it"
_USED = 0.05  # part of a GPU's memory that others may hold before it is worth a word: a display takes less
# What TensorFlow logs, and only logs, where it leaves GPUs out; without the time and place in front.
_COMPLAINT = re.compile(
    r"^(?:(?:[IWEF]\d{4}|\d{4}-\d\d-\d\d) .*?\] )?(.*(?:dlopen|dynamic library|cuInit|cuda drivers|GPU libraries).*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Facts:
    """What the driver, the system and TensorFlow say about GPUs; memory in MiB."""

    driver: Sequence[Sequence[str]]  # name, total and used memory of each, by nvidia-smi
    device_files: int  # /dev/nvidia0 and so on
    tensorflow: int  # GPUs that TensorFlow found
    built_with_cuda: bool
    log: str = ""  # of TensorFlow, while it looked for them
    visible: str | None = None  # CUDA_VISIBLE_DEVICES
    growth: bool = False  # whether TF_FORCE_GPU_ALLOW_GROWTH is set
    workers_here: int = 1


def findings(facts: Facts) -> Iterator[Finding]:
    """Say whether TensorFlow uses the GPUs of this machine, and if not why."""
    # The files are those of the whole machine, also where Slurm or a container leaves this process a part of it.
    there = len(facts.driver) or facts.device_files
    if facts.tensorflow >= there:
        yield Finding("GPUs", "ok", f"{facts.tensorflow or 'none'} in this machine")
    elif facts.tensorflow >= _left_visible(facts.visible, there):
        found = f"CUDA_VISIBLE_DEVICES={facts.visible!r} hides {there - facts.tensorflow} of {there} GPUs"
        yield Finding("GPUs", "warning", found, "Unset CUDA_VISIBLE_DEVICES, or set it to their numbers: 0,1")
    elif not facts.built_with_cuda:
        found = f"this TensorFlow is built for the CPU alone; the machine has {there}"
        yield Finding("GPUs", "failure", found, f"pip uninstall tensorflow-cpu; {_INSTALL}")
    elif not facts.driver:
        found = f"nvidia-smi finds none, though there are {facts.device_files} device files{_said(facts.log)}"
        cure = "Repair the driver on this machine; in a container start it with --gpus all."
        yield Finding("GPUs", "failure", found, cure)
    elif re.search("cuInit|cuda drivers", facts.log):
        found = f"TensorFlow uses {facts.tensorflow} of {there}: the driver's library does not load{_said(facts.log)}"
        cure = (
            "In a container: --gpus all, and NVIDIA_DRIVER_CAPABILITIES=compute,utility. Elsewhere repair the driver, "
            "and see that LD_LIBRARY_PATH names no other libcuda."
        )
        yield Finding("GPUs", "failure", found, cure)
    else:
        found = f"TensorFlow uses {facts.tensorflow} of {there}: the GPU libraries do not load{_said(facts.log)}"
        yield Finding("GPUs", "failure", found, _INSTALL)
    if facts.tensorflow:
        yield from _memory(facts)


def _left_visible(visible: str | None, there: int) -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES leaves: CUDA stops at the first name that it does not know."""
    if visible is None:
        return there
    names = [name.strip() for name in visible.split(",")]
    known = takewhile(lambda name: int(name) < there if name.isdigit() else name not in ("", "-1"), names)
    return len(list(known))


def _visible(facts: Facts) -> Sequence[Sequence[str]]:
    """Return the driver's rows of the GPUs that CUDA_VISIBLE_DEVICES names by number; otherwise all."""
    numbers = [int(name) for name in (facts.visible or "").split(",") if name.strip().isdigit()]
    return [facts.driver[i] for i in numbers if i < len(facts.driver)] or facts.driver


def _said(log: str) -> str:
    complaints = dict.fromkeys(line.strip(" .") for line in _COMPLAINT.findall(log))
    return f"; TensorFlow says: {'; '.join(complaints)}" if complaints else ""


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.workers_here > 1 and facts.visible is None:
        found = f"each of the {facts.workers_here} workers on this machine would take all {facts.tensorflow} GPUs"
        cure = "Give each its own: srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES where the workers are started."
        yield Finding("GPU memory", "failure", found, cure)
    busy = [
        f"{name}: {used} of {total} MiB"
        for name, total, used in _visible(facts)
        if total.isdigit() and used.isdigit() and int(used) > _USED * int(total)
    ]
    if busy and not facts.growth:
        found = f"other processes hold memory that TensorFlow will ask for ({'; '.join(busy)})"
        yield Finding("GPU memory", "warning", found, f"End them (nvidia-smi lists them), or let it grow: {_SHARE}")
    elif busy:
        yield Finding("GPU memory", "ok", f"grows as needed, beside other processes ({'; '.join(busy)})")
    else:
        how = "grows as needed" if facts.growth else "free; TensorFlow takes all of it at the start"
        yield Finding("GPU memory", "ok", how)
