"""Run Python code in a new process: another device layout, another environment, a fresh TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorkit import subprocesses
from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import ArgumentError, MirrorkitError

_WITH_DEVICES = (
    "import runpy, sys; from mirrorkit import devices; devices.resolve({devices!r}); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


@dataclass(frozen=True)
class ProcessResult:
    """What a process left when it exited: exit code, standard output and standard error.

    ```python
    result = mk.testing.run_in_fresh_process("import json; print(json.dumps({'loss': 0.5}))")
    print(result.returncode, result.json()["loss"])  # 0 0.5
    ```
    """

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The last line of standard output, read as JSON."""
        last = self.stdout.strip().rpartition("\n")[2]
        if not last:
            raise MirrorkitError(f"The process printed nothing to read as JSON. Its stderr:\n{self.stderr[-2000:]}")
        return json.loads(last)


@checks_arguments(ArgumentError)
def run_in_fresh_process(
    code_or_file: str | Path,
    *,
    devices: str | int | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120.0,
    check: bool = True,
) -> ProcessResult:
    """Run code (a string) or a file (a Path) in a new Python process and wait until it exits.

    ```python
    code = "import os; print('OMP_NUM_THREADS is', os.environ['OMP_NUM_THREADS'])"
    print(mk.testing.run_in_fresh_process(code, env={"OMP_NUM_THREADS": "1"}).stdout)  # OMP_NUM_THREADS is 1
    ```

    The process runs in an empty temporary folder and in its own process group. Everything that it started is ended with
    it, and nothing is left behind, whether it finishes, fails or runs out of time.

    Args:
        code_or_file: Python source (it may be indented) or the path of a script.
        devices: as in `mirrorkit.strategy.create`; "cpu:2" splits the CPU before the code runs.
        env: environment variables on top of this process's own; None removes one.
        timeout: seconds until it is ended.
        check: raise when the exit code is not 0.

    Raises:
        MirrorkitError: it did not finish in time, or failed and `check` is set. The message has the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as temporary:
        folder, work = Path(temporary), Path(temporary, "work")
        work.mkdir()
        if isinstance(code_or_file, Path):
            script = code_or_file.resolve()
        else:
            # A file, not `python -c`: AutoGraph reads the source of the functions that it converts.
            script = folder / "script.py"
            script.write_text(textwrap.dedent(code_or_file), encoding="utf-8")
        command = [sys.executable, str(script)]
        if devices is not None:
            command[1:1] = ["-c", _WITH_DEVICES.format(devices=devices)]
        # A killed process cannot remove its own temporary files; AutoGraph writes some.
        environment = {**subprocesses.with_mirrorkit(os.environ), "TMPDIR": temporary, **(env or {})}
        given = {name: value for name, value in environment.items() if value is not None}
        # Files instead of pipes: a grandchild that outlives the process would keep a pipe open and the reader waiting.
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            process = subprocess.Popen(
                command, env=given, start_new_session=True, cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            try:
                failed = process.wait(timeout) and check
                what = f"failed with exit code {process.returncode}."
            except subprocess.TimeoutExpired:
                failed, what = True, f"did not finish within {timeout:g} s and was ended."
            finally:
                subprocesses.send(process)
                process.wait()
            texts = [Path(file.name).read_bytes().decode(errors="replace") for file in (out, err)]
    if failed:
        ends = f"End of its stdout:\n{texts[0][-2000:]}\nEnd of its stderr:\n{texts[1][-4000:]}"
        raise MirrorkitError(f"The process {what}\n{ends}")
    return ProcessResult(process.returncode, *texts)
