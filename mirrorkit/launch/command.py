"""The command `python -m mirrorkit launch`."""

from __future__ import annotations

import argparse
from typing import Any

from mirrorkit.launch.launcher import launch


def add(commands: Any) -> None:
    """Add `launch` to the subparsers of the command line."""
    parser = commands.add_parser(
        "launch",
        help="run a script as a cluster of processes on this machine, or on Ray",
        usage="%(prog)s --workers N [options] {script.py | -m module} [arguments of the script]",
        description="Start a script once for every task of a cluster here or on Ray, each with its own TF_CONFIG. "
        "When a task fails (with --ps: the chief or a ps), the others are ended; the exit code is the script's.",
    )
    number = "number of workers; MIN:MAX where it may change while the job runs"
    parser.add_argument("--workers", type=_workers, required=True, metavar="N|MIN:MAX", help=number)
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="number of parameter servers; adds a chief")
    parser.add_argument("--chief", action="store_true", help="add a chief, which trains as the first of the workers")
    restarts = "after a failure start all tasks again; with --ps the failed worker alone"
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N", help=restarts)
    room = "how many workers there is room for: a file with the number, or a command that prints it"
    parser.add_argument("--slots", metavar="FILE|COMMAND", help=room)
    waits = "time to wait where there is no room for MIN workers; 300 by default"
    parser.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help=waits)
    parser.add_argument(
        "--devices-per-worker", metavar="cpu|gpu:N", help="by default the GPUs are divided among the workers"
    )
    parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help="time between SIGTERM and SIGKILL")
    parser.add_argument("--on", choices=["ray"], help="run the workers on the nodes of a Ray cluster")
    on_ray = "CPU cores that Ray keeps free for each worker; 1 by default"
    parser.add_argument("--cpus-per-worker", type=int, default=1, metavar="N", help=on_ray)
    parser.add_argument("--gpus-per-worker", type=int, default=0, metavar="N", help="GPUs of each worker on Ray")
    parser.add_argument("--spread", action="store_true", help="workers on many of Ray's nodes, not on few")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as in python -m module")
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
    return launch(**{name: value for name, value in vars(options).items() if name not in ("command", "run")})
