"""The command `python -m mirrorkit launch`."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from mirrorkit.launch import output
from mirrorkit.launch.launcher import launch


def add(commands: Any) -> None:
    """Add `launch` to the subparsers of the command line."""
    parser = commands.add_parser(
        "launch",
        help="run a script as a cluster of processes on this machine, or on Ray",
        usage="%(prog)s --workers N [options] {script.py | -m module} [arguments of the script]",
        description="Start a script once for every task of a cluster here or on Ray, each with its own TF_CONFIG. "
        "When a task fails (with --ps: the chief or a ps), the others are ended; the exit code is the script's.",
        argument_default=argparse.SUPPRESS,  # those of `launch`
    )
    add_number = functools.partial(parser.add_argument, type=int, metavar="N")
    add_seconds = functools.partial(parser.add_argument, type=float, metavar="SECONDS")
    add_switch = functools.partial(parser.add_argument, action="store_true")
    number = "number of workers; MIN:MAX where it may change while the job runs"
    parser.add_argument("--workers", type=_workers, required=True, metavar="N|MIN:MAX", help=number)
    add_number("--ps", help="number of parameter servers; adds a chief")
    add_switch("--chief", help="add a chief, which trains as the first of the workers")
    add_number("--max-restarts", help="after a failure start all tasks again; with --ps the failed worker alone")
    room = "how many workers there is room for: a file with the number, or a command that prints it"
    parser.add_argument("--slots", metavar="FILE|COMMAND", help=room)
    add_seconds("--wait", help="time to wait where there is no room for MIN workers; 300 by default")
    devices = "by default the GPUs are divided among the workers"
    parser.add_argument("--devices-per-worker", metavar="cpu|gpu:N", help=devices)
    add_seconds("--grace", help="time between SIGTERM and SIGKILL; 30 by default")
    parser.add_argument("--on", choices=["ray"], help="run the workers on the nodes of a Ray cluster")
    add_number("--cpus-per-worker", help="CPU cores that Ray keeps free for each worker; 1 by default")
    add_number("--gpus-per-worker", help="GPUs of each worker on Ray")
    add_switch("--spread", help="workers on many of Ray's nodes, not on few")
    add_switch("-m", "--module", help="the script is a module, as in python -m module")
    parser.add_argument("script", help="a Python file, or with -m a module")
    # argparse would list these as required, though there may be none
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the script").required = False
    parser.set_defaults(run=_run)


def _workers(text: str) -> int | tuple[int, int]:
    least, colon, most = text.partition(":")
    try:
        return (int(least), int(most)) if colon else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"write a number, or a minimum and a maximum, as in 1:4; found {text!r}"
        ) from None


def _run(options: argparse.Namespace) -> int:
    try:
        return launch(**{name: value for name, value in vars(options).items() if name not in ("command", "run")})
    finally:
        output.flush()
