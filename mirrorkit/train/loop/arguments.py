"""What Keras's models have and a Loop has not: what to use in its place."""

from __future__ import annotations

from collections.abc import Mapping

from mirrorkit.errors import StepError

_READS = "tf.data reads ahead by itself; mk.data.source(examples, global_batch_size=..., threads=...) in parallel."
_BATCH = "Use fit, evaluate or predict on data; for a training loop of your own, step.compute and step.update."
_CURES = {
    **dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), _READS),
    "callbacks": "It calls none; fit and evaluate do.",
    **dict.fromkeys(("train_on_batch", "test_on_batch", "predict_on_batch"), _BATCH),
}


def refuse(method: str, given: Mapping[str, object]) -> None:
    """Refuse arguments that a method does not have.

    Raises:
        StepError: an argument of Keras's, with what to use.
        TypeError: any other.
    """
    for name in given:
        if name in _CURES:
            raise StepError(f"Loop.{method} has no argument {name}. {_CURES[name]}")
        raise TypeError(f"Loop.{method}() got an unexpected keyword argument {name!r}")


def not_here(name: str) -> AttributeError:
    """Return the error that a loop has no such attribute."""
    return AttributeError(" ".join([f"A Loop has no {name!r}.", _CURES.get(name, "")]).strip())
