"""Examples per second and step times of a training run, without the first call."""

from __future__ import annotations

import math

import numpy as np

from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import StepError


class Throughput:
    """Collects one record per call of k steps and says how fast the steps were.

    ```python
    throughput = Throughput()
    throughput.record(examples=12800, steps=50, seconds=0.43)
    print(throughput.summary())
    ```

    The first call traces and compiles, so the rates leave it out; see `first_call_seconds`. As long as it is the only
    one, the rates are of that call, and `summary()` says so.

    Args:
        warm: whether the functions were compiled before the first call (by `loop.warm_up`); then the rates include it.

    Attributes:
        examples, steps, seconds: totals of all calls, the first one included.
    """

    @checks_arguments(StepError)
    def __init__(self, *, warm: bool = False) -> None:
        """Start with nothing recorded."""
        self._warm = warm
        self.examples, self.steps, self.seconds = 0, 0, 0.0
        self._calls: list[tuple[int, int, float]] = []

    def record(self, *, examples: int, steps: int, seconds: float) -> None:
        """Add a call of `steps` steps that trained on `examples` examples in `seconds`, with the wait for the devices.

        Raises:
            StepError: steps below 1, examples below 0, or seconds that are not a positive number.
        """
        if steps < 1 or examples < 0 or not 0 < seconds < math.inf:
            raise StepError(
                "A record needs steps >= 1, examples >= 0 and seconds > 0, "
                f"got steps={steps!r}, examples={examples!r}, seconds={seconds!r}."
            )
        self._calls.append((examples, steps, seconds))
        self.examples += examples
        self.steps += steps
        self.seconds += seconds

    @property
    def first_call_seconds(self) -> float:
        """Seconds of the first call: tracing and compilation, and its steps. NaN before it."""
        return self._calls[0][2] if self._calls else math.nan

    @property
    def examples_per_second(self) -> float:
        """Examples per second without the first call. NaN before it."""
        steady = self._steady()
        if not steady:
            return math.nan
        return sum(examples for examples, _, _ in steady) / math.fsum(seconds for _, _, seconds in steady)

    @property
    def step_seconds_median(self) -> float:
        """Median seconds per step without the first call. NaN before it."""
        return self._step_seconds(0.5)

    @property
    def step_seconds_p95(self) -> float:
        """95th percentile of the seconds per step without the first call. NaN before it."""
        return self._step_seconds(0.95)

    def summary(self) -> str:
        """Return one line to print."""
        if not self._calls:
            return "nothing recorded"
        rates = (
            f"{self.examples_per_second:,.0f} examples/s, step {1e3 * self.step_seconds_median:.3g} ms median, "
            f"{1e3 * self.step_seconds_p95:.3g} ms p95"
        )
        if self._warm:
            return rates
        if len(self._calls) == 1:
            return f"{rates} (first call only, compilation included)"
        return f"{rates} (first call: {self.first_call_seconds:.3g} s)"

    def _steady(self) -> list[tuple[int, int, float]]:
        return self._calls if self._warm or len(self._calls) == 1 else self._calls[1:]

    def _step_seconds(self, quantile: float) -> float:
        """Quantile over steps: a call of k steps counts k times, at its mean seconds per step."""
        steady = self._steady()
        if not steady:
            return math.nan
        of_calls = [seconds / steps for _, steps, seconds in steady]
        per_step = np.repeat(of_calls, [steps for _, steps, _ in steady])
        return float(np.quantile(per_step, quantile, method="inverted_cdf"))
