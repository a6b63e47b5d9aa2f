"""What holds for the code that a thread runs: one object, which a block sets and the functions that are replaced read.

A strategy runs each replica in a thread of its own. Other threads of the program know nothing of it: there Keras and
TensorFlow do what they always did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from mirrorkit import private

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


class Ambient(threading.local):
    """Attributes that every thread begins with, and that `set` replaces for a block.

    ```python
    from mirrorkit.train.ambient import ambient

    with ambient.set(alone=True):
        ambient.alone    # True here, and False in other threads
    ```

    Attributes:
        scope: the `ReplicaScope` or `PureScope` that a model's own step runs in.
        alone: whether the code is one replica's, so that there is one and nothing is reduced.
        summaries: called where such code is to write a summary, in a thread that has no writer; None warns once.
        inlines: whether tf.functions become part of the function that is traced around them. Within one of their own
            replicas could not wait for each other, and one that is traced asks no more where it runs, nor for the
            values that variables have in a pass.
        on_device: whether Keras's operations stay on the device, and send one message where they send several.
        totals: what sums a message over the replicas in synchronized layers, and what sums its gradient.
        seeds_on_host: whether seeds are prepared on the host, where TensorFlow's random operations want them. Keras
            prepares them on the device, and on a GPU every draw then begins with a wait for all the work before it.
        numbers: returns what is folded into each seed that a `SeedGenerator` gives; without a draw it is never called.
        drawing: the strategies whose replicas draw numbers of their own now; the same list in all threads.
        policy: Keras's dtype policy where a step was made or a loop called last, if any; the same list in all threads.
        draws: the `RowDraws` of the part of a batch that is computed for a check, which gets each of these seeds.
        gather: what `mk.train.all_gather` does: a step knows what a trace of it is a part of.
        save: saves what Python objects keep of a trace, such as the losses that a layer has added, and returns what
            puts it back; see `switching`.
        reads: for each custom-gradient function that is being called, what gets the variables that it reads.
        optimizers: a dict that gets the optimizers that are to update, by their id; they then update nothing.
        losses: a list that gets the calls of losses.
        compiled: whether XLA compiles the code.
    """

    scope: Any = None
    alone = False
    summaries: Callable[[], None] | None = None
    inlines = False
    on_device = False
    totals: Any = None
    seeds_on_host = False
    numbers: Callable[[], Any] | None = None
    drawing: ClassVar[list[tf.distribute.Strategy]] = []
    policy: ClassVar[list[Any]] = []
    draws: Any = None
    gather: Callable[[Any], Any] | None = None
    save: Callable[[], Callable[[], None]] | None = None
    reads: tuple[Any, ...] = ()
    optimizers: Any = None
    losses: Any = None
    compiled = False

    @property
    def replica(self) -> tuple[tf.Tensor, ...]:
        """The number of the replica that this thread runs, where it draws by replica; outside of a step's passes."""
        context = tf.distribute.get_replica_context()
        if self.scope is not None or context is None or context.strategy not in self.drawing:
            return ()
        return (context.replica_id_in_sync_group,)

    @contextmanager
    def set(self, **values: Any) -> Iterator[None]:
        """Let these attributes have these values within the block."""
        private.install()
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


ambient = Ambient()


def replaces(*keys: str, within: str = "") -> Callable[[Wrapper], Wrapper]:
    """Let a function be called, with the original first, in place of these of private.py.

    With `within` where one of these attributes of `ambient` is set; elsewhere they are as they were.
    """
    names = within.split()

    def is_set() -> bool:
        return not names or any(getattr(ambient, name) not in (None, False, ()) for name in names)

    def register(wrapper: Wrapper) -> Wrapper:
        for key in keys:
            private.register(key, wrapper, is_set)
        return wrapper

    return register


@contextmanager
def switching() -> Iterator[None]:
    """The block communicates, so that other replicas of this process are traced meanwhile, each in its thread."""
    put_back = ambient.save and ambient.save()
    yield
    if put_back:
        put_back()
