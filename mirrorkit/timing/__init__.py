"""Honest timing: a timer that waits for the devices, throughput with the first call kept apart, traces of steps.

```python
with mk.timing.Timer() as timer:
    loop_of_many_steps()
timer.seconds
loop.fit(train, callbacks=[mk.timing.profile("logs", steps=(10, 20))])
```
"""

from __future__ import annotations

import os
from typing import Any

from mirrorkit.timing.throughput import Throughput
from mirrorkit.timing.timer import Timer

__all__ = ["Throughput", "Timer", "profile"]


def profile(log_dir: str | os.PathLike[str], *, steps: tuple[int, int] = (10, 20)) -> Any:
    """Return a Keras callback that writes a trace of some training steps, for TensorBoard's profile page.

    ```python
    loop.fit(train, callbacks=[mk.timing.profile("logs", steps=(10, 20))])
    ```
    ```
    pip install tensorboard xprof && tensorboard --logdir logs
    ```

    A trace holds whole calls: from the first call that begins at or after step 10 to the end of the one that reaches
    step 20. `Loop(..., steps_per_call=10)` makes them short; Keras's `fit` calls every step (`steps_per_execution`).
    Around a loop of your own, use `with tf.profiler.experimental.Profile("logs"):`.
    Source: https://www.tensorflow.org/guide/profiler

    Args:
        log_dir: where to write; a new folder in it holds the trace.
        steps: (first, end) training steps of the run, counted from 0 over all its epochs; by the tenth step, all is
            compiled and caches are warm.

    Raises:
        StepError: `steps` is no range.
    """
    from mirrorkit.timing.profiler import checked  # here, since the rest of mk.timing needs no TensorFlow

    return checked(log_dir, steps)
