"""Which operations TensorFlow can run on a GPU, and which of their tensors must lie in the host's memory there.

The package `tensorflow` holds the registrations of all GPU kernels, on a machine without a GPU too. Their list is not
public; `test_inspection.py` fails when it moves.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorflow.python.framework import kernels as _registry


class Kernel(NamedTuple):
    """A kernel for GPUs: which of an operation's tensors it takes from, and leaves in, the host's memory."""

    host_inputs: list[bool]
    host_outputs: list[bool]


def on_gpu(op: Any) -> Kernel | None:
    """Return the kernel that would run `op` (a `tf.Operation`) on a GPU; None where there is none."""
    for registered in _registered(op.type):
        if _fits(registered, op):
            host = set(registered.host_memory_arg)
            return Kernel(_which(op, op.op_def.input_arg, host), _which(op, op.op_def.output_arg, host))
    return None


@functools.cache
def _registered(op_type: str) -> list[Any]:
    found = _registry.get_registered_kernels_for_op(op_type).kernel
    return [kernel for kernel in found if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label]


def _fits(kernel: Any, op: Any) -> bool:
    """Whether the kernel takes the dtypes of this operation."""
    for constraint in kernel.constraint:
        value = op.node_def.attr.get(constraint.name)
        if value is None:
            continue
        types = [value.type] if value.type else list(value.list.type)
        if not set(types) <= set(constraint.allowed_values.list.type):
            return False
    return True


def _which(op: Any, arguments: Sequence[Any], host: set[str]) -> list[bool]:
    return [argument.name in host for argument in arguments for _ in range(_count(op, argument))]


def _count(op: Any, argument: Any) -> int:
    """Return how many tensors an argument stands for."""
    if argument.number_attr:
        return int(op.node_def.attr[argument.number_attr].i)
    if argument.type_list_attr:
        return len(op.node_def.attr[argument.type_list_attr].list.type)
    return 1
