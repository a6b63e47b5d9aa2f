"""What a finished `Loop.fit` has to say."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrorkit.timing import Throughput


@dataclass
class Epoch:
    """One epoch of training, without validation and callbacks; the first epoch's time includes compilation.

    ```python
    for epoch in loop.fit(train, epochs=2, verbose=0).epochs:
        print(epoch.steps, epoch.examples)  # 4 256
    ```
    """

    examples: int
    steps: int
    seconds: float

    @property
    def examples_per_second(self) -> float:
        """Examples per second of training calls."""
        return self.examples / self.seconds


@dataclass
class Report:
    """What `Loop.fit` returns.

    ```python
    report = loop.fit(train, epochs=2)
    print(sorted(report.history), len(report.epochs))  # ['accuracy', 'loss'] 2
    print(report.summary())
    ```

    Attributes:
        history: for each log name its value at the end of every epoch, with Keras's names (`loss`, `val_loss`, ...).
        throughput: examples per second and step times over all training calls, with the first one kept apart.
        epochs: examples, steps and seconds of each epoch, or part of one, that this fit trained. After a checkpoint
            was restored, `history` reaches back to the beginning of the run, `epochs` and `throughput` do not.
        skipped_steps: updates that a loss scale has skipped since the beginning of the run.
        seed: of the order of arrays or of a PyDataset; None where the data has its own order.
    """

    history: dict[str, list[float]] = field(default_factory=dict)
    throughput: Throughput = field(default_factory=Throughput)
    epochs: list[Epoch] = field(default_factory=list)
    skipped_steps: int = 0
    seed: int | None = None

    @property
    def examples_per_second(self) -> float:
        """Training speed over the whole run; the first call, which compiles, is left out."""
        return self.throughput.examples_per_second

    def summary(self) -> str:
        """Return one line: the speed, and the last epoch's logs."""
        last = ", ".join(f"{name} {values[-1]:.4f}" for name, values in self.history.items() if values)
        return f"{self.throughput.summary()}; {last}" if last else self.throughput.summary()
