"""Timing: a timer that waits for the devices, a warm-up, throughput without the first call, traces of steps.

```python
mk.timing.warm_up(train_step, batch, restore=[model, optimizer])
with mk.timing.Timer() as timer:
    loop_of_many_steps()
timer.seconds
loop.fit(train, callbacks=[mk.timing.profile("logs", steps=(10, 20))])
```
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mirrorkit.timing.throughput import Throughput
from mirrorkit.timing.timer import Timer

__all__ = ["Throughput", "Timer", "profile", "warm_up"]


def profile(log_dir: str | os.PathLike[str], *, steps: tuple[int, int] = (10, 20)) -> Any:
    """Return a Keras callback that writes a trace of some training steps, for TensorBoard's profile page.

    ```python
    loop.fit(train, callbacks=[mk.timing.profile("logs", steps=(10, 20))])
    ```
    ```
    pip install tensorboard xprof && tensorboard --logdir logs
    ```

    A trace holds whole calls: from the first call that begins at or after step 10 to the end of the one that reaches
    step 20. `Loop(..., steps_per_call=10)` makes them short; Keras's `fit` makes one call per step, unless
    `steps_per_execution` is set. Around a custom training loop, use `with tf.profiler.experimental.Profile("logs"):`.
    Source: https://www.tensorflow.org/guide/profiler

    Args:
        log_dir: where to write; a new folder in it holds the trace. An address must be one that TensorFlow opens
            (gs://).
        steps: (first, end) training steps of the run, counted from 0 over all its epochs; by the tenth step, all is
            compiled and caches are warm.

    Raises:
        StepError: `steps` is not a valid range.
        ArgumentError: an address that TensorFlow does not open.
    """
    from mirrorkit.timing.profiler import Profile  # here, since the rest of mk.timing needs no TensorFlow

    return Profile(log_dir, steps)


def warm_up(function: Callable[..., Any], *arguments: Any, restore: Any = ()) -> None:
    """Compile a function and run it once, and leave every variable and random generator as it was, bit for bit.

    ```python
    batches = iter(mk.data.distribute(train.dataset(epoch=0), strategy, autoshard="data"))
    mk.timing.warm_up(train_step, next(batches), restore=[model, optimizer])   # your own tf.function

    model.make_train_function()                                                # Keras's, before model.fit
    mk.timing.warm_up(model.train_function, iter(strategy.experimental_distribute_dataset(dataset)), restore=model)
    ```

    For a custom training loop and for Keras's `fit`; `mk.train.Loop` has its own `warm_up`. After that the first real
    call neither traces nor compiles, if its arguments have the same shapes and dtypes and it is made in the same
    strategy scope (or outside of any) as the warm-up.

    It restores (under a strategy, every replica's copy of) what `restore` lists, variables among the arguments, the
    variables of a `tf.function` (also of one that `function` calls, and those that it creates when it is first traced,
    such as the slots of an optimizer), and the global random generators of Python, NumPy and TensorFlow. Until then the
    devices hold those values twice. An error within the function is raised after everything is restored.

    What cannot be restored:

    - An iterator among the arguments has advanced by what the function took; pass a fresh one. An iterator of a
      `tf.data.Dataset` that reshuffles for each iteration changes the order of the next one; a recipe such as
      `mk.data.batches` gives the same order every time.
    - Stateful random operations such as `tf.random.normal` within a `tf.function` keep a count of their calls that
      cannot be restored; `keras.random`, `tf.random.Generator` and `tf.random.stateless_normal` do not.
    - Changes by Python code outside of every `tf.function`, unless `restore` lists them; and lookup tables, which keep
      what was inserted.

    Args:
        function: a `tf.function`, or a plain function that calls some, such as Keras's `model.train_function`.
        *arguments: what it will be called with, or anything of the same shapes and dtypes.
        restore: a variable (Keras's or TensorFlow's), an object that has `.variables` (a model together with its
            metrics and its compiled optimizer, an optimizer, a `mk.train.Step`), or a list of these; required where
            `function` is not a `tf.function`.

    Raises:
        StepError: a plain function and nothing to restore; something in `restore` that has no variables; variables that
            the first call creates outside of any `tf.function`, or with first values that depend on the call; a warm-up
            within a `tf.function`.
    """
    from mirrorkit.timing.rehearsal import rehearse  # here, since the rest of mk.timing needs no TensorFlow

    rehearse(function, arguments, restore)
