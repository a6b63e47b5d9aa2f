"""The command line: `python -m mirrorkit doctor`, `python -m mirrorkit launch --workers 2 script.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorkit.doctor import command as doctor, in_a_line as versions
from mirrorkit.errors import MirrorkitError
from mirrorkit.launch import command as launch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: its own, 1 with a message on stderr, or argparse's 2."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except MirrorkitError as error:
        print(f"mirrorkit {options.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    prog = "mirrorkit" if Path(sys.argv[0]).stem == "mirrorkit" else "python -m mirrorkit"  # the console command
    parser = argparse.ArgumentParser(prog=prog, description="Tools for distributed training.")
    parser.add_argument("--version", action="version", version=versions(), help="print the versions and exit")
    commands = parser.add_subparsers(dest="command", required=True)
    devices = commands.add_parser(
        "devices",
        help="check that every device computes correct results",
        description="Compute on every device, check the results, and list the devices. The exit code is 1 when a "
        "device fails or a required one is missing.",
    )
    devices.add_argument("--require", metavar="KIND[:N]", help="fail unless there are such devices: gpu, or gpu:4")
    devices.add_argument("--devices", metavar="cpu:N", help="split the CPU into N virtual devices first")
    devices.set_defaults(run=_devices)
    doctor.add(commands)
    launch.add(commands)
    return parser


def _devices(options: argparse.Namespace) -> int:
    # Here, so that --help and mistakes in the arguments are answered before TensorFlow loads.
    from mirrorkit import devices

    if options.devices is not None:
        devices.resolve(options.devices)
    print(devices.verify(require=options.require))
    return 0


if __name__ == "__main__":
    sys.exit(main())
