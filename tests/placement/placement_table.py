"""Where the examples and every feature would run on GPUs: `figures.md` beside this file.

Run: python tests/placement/placement_table.py [--write] [--only NAME ...]

Prints the table; `--write` writes it into figures.md. The exit code is 1 when an operation has no kernel on its device,
a step waits, or brings more to the devices than its batch.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where pages.py is

from gpu_placement import CallPlacement, Tally, gpu_strategy, memory_of, of_loop, walk
from pages import put_between
from placement_subjects import FEATURES

import mirrorkit as mk

PAGE = Path(__file__).with_name("figures.md")
BEGIN, END = "<!-- table: written by tests/placement/placement_table.py -->", "<!-- end of the table -->"
EXAMPLES = {
    "mnist_loop.py": ["--data", "synthetic"],
    "mnist_custom_loop.py": ["--data", "synthetic"],
    "cifar10_mirrored.py": ["--data", "synthetic"],
    "same_weights.py": ["--data", "synthetic", "--strategy", "mirrored"],
    "compare_strategies.py": [],  # which starts processes of its own: its function is called
}
HEAD = ["", "call", "kernels of a step", "host to GPUs", "of it the batch", "no kernel", "waits", "GPUs to host"]


class Row(NamedTuple):
    """A call of an example or of a feature."""

    name: str
    call: CallPlacement

    def cells(self) -> list[str]:
        """What the table says of it."""
        step = self.call.step
        kernels = step.kernels_on("GPU:0")
        batch = min(self.call.batch_bytes, self.call.to_devices)
        sizes = [f"{size:,}" for size in (self.call.to_devices, batch)]
        waits = len(step.between("GPU", "host")) + len(step.blocking)
        return [
            self.name,
            self.call.name,
            str(kernels),
            *sizes,
            str(len(step.without_kernel)),
            str(waits),
            f"{self.call.to_host:,}",
        ]


class _Found(BaseException):
    """Ends an example once its loop is known."""


def example(name: str) -> list[CallPlacement]:
    """Run an example as it stands, up to its first training step, with four GPUs in place of what it asks for."""
    strategy = gpu_strategy("gpu:4")
    found: list[CallPlacement] = []

    def trained(loop: Any, data: Any, validation_data: Any = None, **rest: Any) -> None:
        found.extend(of_loop(loop, data, validation_data=validation_data).calls)
        raise _Found

    def of_function(function: Any, batch: Any, restore: Any) -> None:
        _, resources = memory_of(restore, [f"GPU:{i}" for i in range(4)])
        traced = function.get_concrete_function(batch)
        parts = [part for values in batch for part in strategy.experimental_local_results(values)]
        rows = parts[0].shape[0]
        step = walk(traced, "host", resources=resources, unknown_size=rows, has_loop=False).step
        size = sum(part.dtype.size * part.shape.num_elements() for part in parts)
        found.append(CallPlacement(("train", "evaluate")[len(found)], step, Tally(), size))
        if len(found) == 2:
            raise _Found

    script = Path(__file__).resolve().parents[2] / "examples" / name
    with (
        mock.patch.object(mk.strategy, "create", return_value=strategy),
        mock.patch.object(mk.train.Loop, "warm_up", trained),
        mock.patch.object(mk.train.Loop, "fit", trained),
        mock.patch.object(mk.timing, "warm_up", of_function),
        mock.patch.object(sys, "argv", [name, *EXAMPLES[name]]),
    ):
        try:
            names = runpy.run_path(str(script), run_name="__main__" if EXAMPLES[name] else name)
            names["measure"]("mirrored", "gpu:4", mk.data.synthetic(train=2560, test=1000), 256, 1)
        except _Found:
            return found
    raise AssertionError(f"{name} did not train")


def rows(only: list[str]) -> Iterator[Row]:
    """Yield the rows, first those of the examples."""
    for name in EXAMPLES:
        if not only or name in only:
            yield from (Row(name, call) for call in example(name))
    for name, subject in FEATURES.items():
        for source in ("batches", "resident") if not only or name in only else ():
            yield from (Row(f"{name}; {source}", call) for call in subject.placement(source, devices="gpu:2").calls)


def as_markdown(found: list[Row]) -> str:
    """A table for each."""
    lines = [HEAD, ["---"] * 2 + ["---:"] * (len(HEAD) - 2), *(row.cells() for row in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Print, write, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the whole table into figures.md")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write writes the whole table: leave out --only")
    found = list(rows(options.only))
    table = as_markdown(found)
    print(table)
    if options.write:
        put_between(PAGE, table, BEGIN, END)
    problems = [f"{row.name}: {problem}" for row in found for problem in row.call.problems]
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
