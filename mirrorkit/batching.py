"""Batch arithmetic: global and per-replica batches, accumulation, and the learning rate that goes with them.

```python
mk.batching.global_batch_size(64, replicas=4)                                      # 256
mk.batching.per_replica_sizes(250, 4)                                              # (63, 63, 63, 61)
mk.batching.scale_learning_rate(0.1, global_batch_size=1024, base_batch_size=256)  # 0.4
```

Plain Python: importing this does not start TensorFlow.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Literal

from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.errors import StepError


def per_replica_sizes(global_batch_size: int, replicas: int) -> tuple[int, ...]:
    """Return how many examples of one global batch each replica gets.

    ```python
    print(mk.batching.per_replica_sizes(250, 4))  # (63, 63, 63, 61)
    ```

    This is the rule of `tf.distribute`'s `experimental_distribute_dataset`: every replica takes ceil(batch / replicas)
    examples until none are left, so the last replicas may get fewer or none. This includes an epoch's last, smaller
    batch.

    Raises:
        StepError: a number is not a positive whole number.
    """
    _check_positive(global_batch_size=global_batch_size, replicas=replicas)
    share = math.ceil(global_batch_size / replicas)
    return tuple(max(0, min(share, global_batch_size - i * share)) for i in range(replicas))


def global_batch_size(per_replica: int, *, replicas: int, accumulate: int = 1) -> int:
    """The number of examples in one update: `per_replica` on each of `replicas`, over `accumulate` successive batches.

    ```python
    print(mk.batching.global_batch_size(64, replicas=4))  # 256
    ```

    Choose the learning rate for this number. With `accumulate=1` it is also the batch size of the data.

    Raises:
        StepError: a number is not a positive whole number.
    """
    _check_positive(per_replica=per_replica, replicas=replicas, accumulate=accumulate)
    return per_replica * replicas * accumulate


@checks_arguments(StepError)
def scale_learning_rate(
    learning_rate: float,
    *,
    global_batch_size: int,
    base_batch_size: int,
    rule: Literal["linear", "sqrt"] = "linear",
) -> float:
    """The learning rate for `global_batch_size`, given one that works for `base_batch_size`.

    ```python
    print(mk.batching.scale_learning_rate(0.1, global_batch_size=1024, base_batch_size=256))  # 0.4
    ```

    "linear" multiplies it by global_batch_size / base_batch_size, and goes with a warm-up over the first epochs (Goyal
    et al. 2017, arXiv:1706.02677). "sqrt" multiplies it by the square root of that ratio, which keeps the variance of
    the update (Krizhevsky 2014, arXiv:1404.5997). For `global_batch_size`, see the function of that name.

    Raises:
        StepError: a number is not positive, or the rule is unknown.
    """
    _check_positive(global_batch_size=global_batch_size, base_batch_size=base_batch_size)
    if not 0 < learning_rate < math.inf:
        raise StepError(f"learning_rate must be a positive number, got {learning_rate!r}.")
    ratio = global_batch_size / base_batch_size
    if rule == "linear":
        return learning_rate * ratio
    if rule == "sqrt":
        return learning_rate * math.sqrt(ratio)
    raise StepError(f"Unknown rule {rule!r} to scale the learning rate. The rules are 'linear' and 'sqrt'.")


def check_split(global_batch_size: int, replicas: int) -> None:
    """Warn, once per pair of numbers, when the replicas cannot share the global batch equally.

    ```python
    mk.batching.check_split(256, 4)   # 64 each: no warning
    mk.batching.check_split(250, 4)   # warns: they get 63, 63, 63, 61
    ```

    The result is still correct; every step takes as long as the largest share.

    Raises:
        StepError: a number is not a positive whole number.
    """
    if len(set(per_replica_sizes(global_batch_size, replicas))) > 1:
        _warn_of_shares(global_batch_size, replicas)


@functools.cache
def _warn_of_shares(global_batch_size: int, replicas: int) -> None:
    sizes = per_replica_sizes(global_batch_size, replicas)
    below = global_batch_size // replicas * replicas
    equal = [str(size) for size in (below, below + replicas) if size]
    warnings.warn(
        f"A global batch of {global_batch_size} examples cannot be shared equally by {replicas} replicas: they get "
        f"{', '.join(map(str, sizes))}. The result is correct, but each step waits for the largest share. "
        f"Shared equally: {' or '.join(equal)}.",
        stacklevel=3,
    )


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        whole_number(name, value, StepError, most=2**20 if name == "replicas" else 2**63 - 1)
