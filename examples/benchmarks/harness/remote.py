"""An object that lives in a Python process of its own and is called from here.

```python
with Remote("statistics:NormalDist", {"mu": 3.0}) as remote:
    remote.call("quantiles", n=4)
```

The process ends with the one that started it. It is not a `multiprocessing.Process`, which would run a user's script
again, and take its environment variables too late for TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from mirrorkit import subprocesses
from mirrorkit.errors import MirrorkitError


class Remote(contextlib.AbstractContextManager["Remote"]):
    """An object in a process of its own, which starts at once.

    Args:
        target: "module:class" or "module:function" makes the object; "module" is one itself.
        arguments: keyword arguments of the class or function; they are pickled.
        environment: variables on top of this process's own.
        timeout: seconds to wait for an answer.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 900.0,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._ended = False
        self._folder = tempfile.TemporaryDirectory(prefix="mirrorkit-")
        self._log = Path(self._folder.name, "log")
        path = [entry or os.getcwd() for entry in sys.path]
        variables = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            **(environment or {}),  # perhaps all that is in this process's own
            "TMPDIR": self._folder.name,  # a killed process cannot remove its own temporary files
            "PYTHONPATH": os.pathsep.join(path),
        }
        subprocesses.open_standard_streams()
        self._connection, theirs = Pipe()
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.serve", str(theirs.fileno()), self._folder.name],
                env=subprocesses.with_mirrorkit(variables),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._send((target, dict(arguments or {})))

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method, wait for it, and return what it returned.

        A MirrorkitError says that it failed, or that the object could not be made.
        """
        self._send((method, arguments))
        if not self._connection.poll(max(0.0, self._timeout)):
            raise MirrorkitError(f"{self._target} gave no answer within {self._timeout:g} s.")
        try:
            value, error = self._connection.recv()
        except (EOFError, ConnectionResetError):
            value, error = None, f"the process ended with {self._process.wait()}"
        if error is not None:
            end = self._log.read_text(errors="replace")[-3000:]
            raise MirrorkitError(f"{self._target} failed: {error}\nEnd of its output:\n{end}")
        return value

    def _send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died: the missing answer will tell
            self._connection.send(message)

    def end(self) -> None:
        """End the process and whatever it started; a call that waits for it in another thread fails."""
        if not self._ended:  # or the number of the process may be another's
            subprocesses.send(self._process)
            self._process.wait()
        self._ended = True

    def __exit__(self, *_: object) -> None:
        """End the process and whatever it started."""
        self.end()
        self._connection.close()
        self._folder.cleanup()
