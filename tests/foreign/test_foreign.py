"""Other projects' tests with mirrorkit inside: they pass, and fail where mirrorkit computes something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import run
from run import SUITES, Outcome, Suite

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "foreign.md"
WRONG_UPDATE = """
from mirrorkit import optim

right = optim.functional_apply

def wrong(*given, **options):
    weights, slots = right(*given, **options)
    return [weight + 0.01 for weight in weights], slots

optim.functional_apply = wrong
"""
WRONG_SUMS = """
import by_totals

right = by_totals._share
by_totals._share = lambda output, replica: right(output._replace(weight=None), replica)
"""
OPTIMIZERS = SUITES["optimizers"]
METRICS = SUITES["metrics"]._replace(files="keras/src/metrics/regression_metrics_test.py", needs=())


def _broken(suite: Suite, only: str, code: str, folder: Path) -> Outcome:
    (folder / "broken.py").write_text(code)
    return run.run(suite, only, plugins=["broken"], paths=[folder])


@pytest.mark.slow
def test_keras_optimizer_tests_fail_where_the_update_is_wrong(tmp_path: Path) -> None:
    found = _broken(OPTIMIZERS._replace(files="keras/src/optimizers/sgd_test.py"), "", WRONG_UPDATE, tmp_path)
    assert len(found.failed) > found.passed


@pytest.mark.slow
def test_keras_metric_tests(tmp_path: Path) -> None:
    found = run.run(METRICS)
    assert not found.failed
    assert found.passed >= 15
    assert _broken(METRICS, "weighted", WRONG_SUMS, tmp_path).failed


def test_the_tests_that_the_page_names_exist() -> None:
    """Those of the same situations as TensorFlow's tests of lost workers."""
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())
    assert len(named) == 5
    for file, name in named:
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), f"{file} has no {name}"


def test_what_counts_as_passed() -> None:
    def test(outcome: str = "passed", calls: int = 2, reasons: tuple[str, ...] = (), message: str = "") -> dict:
        return {"outcome": outcome, "calls": calls, "reasons": list(reasons), "message": message}

    tests = {
        "one": test(),
        "without a call": test(calls=0),
        "left to Keras": test(reasons=["it is refused"]),
        "skipped": test("skipped", 0, message="Skipped: no JAX"),
        "failed": test("failed", message="1 is not 2"),
        "failed beside": test("failed", 0, ["it is refused"], "2 is not 3"),
    }
    found = run.outcome(OPTIMIZERS, tests)
    assert found.passed == 1
    assert found.failed == {"failed": "1 is not 2", "failed beside": "2 is not 3"}
    assert found.beside == {
        OPTIMIZERS.unless_called: 1,
        "it is refused": 1,
        "skipped by the suite: no JAX": 1,
    }
    assert found.tests == len(tests)
