"""Where each operation of a compiled function would run on GPUs, and what would travel between host and devices.

The rules are TensorFlow's. A node without a device takes that of the function it is in; at the top, and in the body
of a loop there, it goes to the first GPU when there is a kernel for it. A node with a device but without a kernel there
goes to the host ("soft placement"). A function's arguments and a loop's variables stay where they are. Tensors of int32
lie in the host's memory on GPUs too; which others do says the kernel's registration. Grappler, which rewrites the graph
before it runs, is not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gpu_placement import kernels
from gpu_placement.source import line_of
from gpu_placement.tally import HOST_PLACE, Copy, FlaggedOperation, Tally, Walk
from mirrorkit.checks.by_device import WITHOUT_COMPUTATION

_FUNCTIONS = {  # the attributes that name an operation's functions
    "PartitionedCall": ("f",),
    "While": ("cond", "body"),
    "If": ("then_branch", "else_branch"),
    "Case": ("branches",),
}
_FUNCTIONS |= {f"State{kind}{op}": names for op, names in _FUNCTIONS.items() for kind in ("ful", "less")}
_BLOCKING = {
    **dict.fromkeys(["PyFunc", "PyFuncStateless", "EagerPyFunc"], "calls Python in every step"),
    **dict.fromkeys(
        [
            *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "DynamicPartition"),
            *(f"NonMaxSuppression{version}" for version in ("", "V2", "V3", "V4", "V5")),
        ],
        "the size of its result is known only after the device has counted",
    ),
}
_PASS_ON = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "PlaceholderWithDefault", "EnsureShape"}
_COLLECTIVES = ("Collective", "NcclAllReduce")
_OF_THE_SHAPE = {"Shape", "ShapeN", "Size", "Rank"}
_NOT_COPIED = (tf.resource, tf.variant)


class Value(NamedTuple):
    """A tensor: where it lies, which one it is (an argument of a function is the caller's tensor), and its bytes."""

    place: str | None  # HOST_PLACE or "GPU:1"; of a resource None where that is not known
    origin: int
    size: int
    constant: bool = False


def walk(
    function: Any,
    places: Sequence[str] | str = (),
    *,
    resources: Mapping[int, str] | None = None,
    unknown_size: int = 1,
    has_loop: bool = True,
) -> Walk:
    """Look at a `tf.ConcreteFunction`.

    Args:
        function: traced for GPUs that need not be there.
        places: where its first arguments lie, "host" or "GPU:0", flat and in order, or all of them; the others lie
            where TensorFlow puts what eager code makes: on the first GPU, and int32 on the host.
        resources: from `id(variable.handle)` to where a captured variable lies.
        unknown_size: stands for a dimension that is not known before it runs.
        has_loop: whether the outermost `while` goes round once for each step; without, the function is one step.
    """
    found = Walk()
    _Walker(found, resources or {}, unknown_size, has_loop=has_loop).top(function, places)
    return found


class _Walker:
    def __init__(self, found: Walk, resources: Mapping[int, str], unknown_size: int, *, has_loop: bool) -> None:
        self._found = found
        self._tally = found.call if has_loop else found.step
        self._resources = resources
        self._unknown_size = unknown_size
        self._has_loop = has_loop
        self._origins = itertools.count()

    def top(self, function: Any, places: Sequence[str] | str) -> None:
        inputs = function.graph.inputs
        captured = function.captured_inputs
        arguments = inputs[: len(inputs) - len(captured)]
        given: list[str | None] = [places] * len(arguments) if isinstance(places, str) else list(places)
        given += [_default(tensor) for tensor in arguments[len(given) :]]
        given = [HOST_PLACE if t.dtype == tf.int32 else place for t, place in zip(arguments, given, strict=True)]
        values = [self._new(t, place) for t, place in zip(arguments, given, strict=True)]
        for tensor, outer in zip(inputs[len(arguments) :], captured, strict=True):
            is_variable = tensor.dtype == tf.resource
            values.append(self._new(tensor, self._resources.get(id(outer)) if is_variable else _default(tensor)))
        self._graph(function.graph, values, None)

    def _graph(self, graph: Any, inputs: Sequence[Value], caller: str | None) -> list[Value]:
        """Look at all operations of a function that is called on a device; return its results."""
        values: dict[int, Value] = {id(t): v for t, v in zip(graph.inputs, inputs, strict=True)}
        for op in _in_order(graph):
            if op.type == "Placeholder" and id(op.outputs[0]) in values:
                continue
            given = [values[id(tensor)] for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self._op(op, given, caller), strict=True):
                values[id(tensor)] = value
        return [values[id(tensor)] for tensor in graph.outputs]

    def _op(self, op: Any, given: list[Value], caller: str | None) -> list[Value]:
        explicit = place_of(op.device)
        if op.type in _FUNCTIONS:
            return self._call(op, given, explicit or caller)
        if _is_constant(op, given):  # TensorFlow works it out before the function runs
            device = explicit or caller or "GPU:0"
            return [
                self._new(t, HOST_PLACE if t.dtype == tf.int32 else device)._replace(constant=True) for t in op.outputs
            ]
        if op.type in _PASS_ON and explicit is None and given:
            return [value._replace(size=self._size(t)) for t, value in zip(op.outputs, given, strict=False)]
        # An operation goes where its variable or iterator lies; an optional batch is read where the iterator was.
        held = tf.variant if op.type.startswith("Optional") else tf.resource
        resource = next((v.place for t, v in zip(op.inputs, given, strict=True) if t.dtype == held), None)
        kernel = kernels.on_gpu(op)
        device = resource or explicit or caller or (HOST_PLACE if kernel is None else "GPU:0")
        calls_python = "PyFunc" in op.type
        if op.type in _BLOCKING and (calls_python or device != HOST_PLACE):
            self._tally.blocking.append(_finding(op, _BLOCKING[op.type]))
        if device != HOST_PLACE and kernel is None and not calls_python:
            types = ", ".join(sorted({t.dtype.name for t in (*op.inputs, *op.outputs)}))
            self._tally.without_kernel.append(_finding(op, f"no GPU kernel for {types or 'it'}"))
        if kernel is None:
            device = HOST_PLACE
        if kernel is None or device == HOST_PLACE:
            kernel = kernels.Kernel([True] * len(op.inputs), [True] * len(op.outputs))
        for tensor, value, on_host in zip(op.inputs, given, kernel.host_inputs, strict=True):
            if tensor.dtype not in _NOT_COPIED:
                self._copy(op, value, HOST_PLACE if on_host else device)
        launches = device != HOST_PLACE and (not op.outputs or not all(kernel.host_outputs))
        if launches and op.type not in WITHOUT_COMPUTATION:
            self._tally.kernels[device, op.type] += 1
        if op.type.startswith(_COLLECTIVES):
            self._tally.reduced[device] += given[0].size
        outputs = zip(op.outputs, kernel.host_outputs, strict=True)
        return [self._new(t, device if t.dtype in _NOT_COPIED or not on_host else HOST_PLACE) for t, on_host in outputs]

    def _call(self, op: Any, given: list[Value], device: str | None) -> list[Value]:
        bodies = [op.graph._get_function(name) for name in _function_names(op)]  # the graphs hold the lines of code
        if op.type.endswith("While"):
            return self._loop(op, [body.graph for body in bodies], given, device)
        if op.type.endswith(("If", "Case")):
            self._copy(op, given[0], HOST_PLACE)
            return self._branches([body.graph for body in bodies], given[1:], device)
        (body,) = bodies
        if "_XlaMustCompile" in body.definition.attr and body.definition.attr["_XlaMustCompile"].b:
            return self._compiled(op, given, device or "GPU:0")
        return self._graph(body.graph, given, device)

    def _loop(self, op: Any, graphs: list[Any], given: list[Value], device: str | None) -> list[Value]:
        outside = self._tally
        if self._has_loop:
            self._has_loop, self._tally = False, self._found.step
        else:
            self._tally.loops += 1
        condition, body = graphs
        given = [value._replace(constant=False) for value in given]  # a round gives them other values
        self._copy(op, self._graph(condition, given, device)[0], HOST_PLACE)
        for tensor, before, after in zip(body.outputs, given, self._graph(body, given, device), strict=True):
            if tensor.dtype not in _NOT_COPIED and before.place is not None:
                self._copy(op, after, before.place)
        self._tally = outside
        return given

    def _branches(self, graphs: list[Any], given: list[Value], device: str | None) -> list[Value]:
        outside, tallies, results = self._tally, [], []
        for graph in graphs:
            self._tally = Tally()
            results.append(self._graph(graph, given, device))
            tallies.append(self._tally)
        self._tally = outside
        self._tally.add_branches(tallies)
        return [values[0]._replace(size=max(v.size for v in values)) for values in zip(*results, strict=True)]

    def _compiled(self, op: Any, given: list[Value], device: str) -> list[Value]:
        """XLA makes one program of such a function, and nothing of it is known here."""
        for tensor, value in zip(op.inputs, given, strict=True):
            if tensor.dtype not in _NOT_COPIED:
                self._copy(op, value, HOST_PLACE if tensor.dtype == tf.int32 else device)
        self._tally.kernels[device, "XLA program"] += 1
        return [self._new(tensor, HOST_PLACE if tensor.dtype == tf.int32 else device) for tensor in op.outputs]

    def _copy(self, op: Any, value: Value, target: str) -> None:
        if value.place in (None, target):
            return
        assert value.place is not None
        what = f"{value.size:,} bytes from {value.place} to {target}"
        copy = Copy(value.place, target, value.size, _finding(op, what))
        self._tally.copies.setdefault((value.origin, target), copy)

    def _new(self, tensor: Any, place: str | None) -> Value:
        return Value(place, next(self._origins), self._size(tensor))

    def _size(self, tensor: Any) -> int:
        if tensor.dtype in (*_NOT_COPIED, tf.string) or tensor.shape.rank is None:
            return 0
        size = int(tensor.dtype.size)
        for length in tensor.shape:
            size *= self._unknown_size if length is None else int(length)
        return size


def _in_order(graph: Any) -> Iterator[Any]:
    """Yield operations after those that they depend on; the gradient of a loop adds inputs to what was there before."""
    done: set[int] = set()
    for last in graph.get_operations():
        open_ = [last]
        while open_:
            op = open_[-1]
            missing = [tensor.op for tensor in op.inputs if id(tensor.op) not in done]
            open_ += missing
            if not missing:
                open_.pop()
                if id(op) not in done:
                    done.add(id(op))
                    yield op


def _is_constant(op: Any, given: Sequence[Value]) -> bool:
    if op.type == "Const":
        return True
    if op.type in _OF_THE_SHAPE:
        return all(tensor.shape.is_fully_defined() for tensor in op.inputs)
    return bool(given) and all(value.constant for value in given) and not op.op_def.is_stateful


def _default(tensor: Any) -> str | None:
    """Return where a tensor lies that eager code made without a device of its own."""
    if tensor.dtype in _NOT_COPIED:
        return None
    return HOST_PLACE if tensor.dtype in (tf.int32, tf.string) else "GPU:0"


def place_of(device: str) -> str | None:
    """Return "GPU:1", or "host", for a device's name; None for a name that leaves the type open."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type is None:
        return None
    return f"GPU:{spec.device_index or 0}" if spec.device_type.upper() == "GPU" else HOST_PLACE


def _function_names(op: Any) -> list[str]:
    """Return the names of the functions that an operation calls."""
    names = []
    for attribute in _FUNCTIONS[op.type]:
        value = op.node_def.attr[attribute]
        names += [f.name for f in value.list.func] if value.list.func else [value.func.name]
    return names


def _finding(op: Any, what: str) -> FlaggedOperation:
    return FlaggedOperation(op.type, op.name, line_of(op), what)
