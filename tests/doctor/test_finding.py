from __future__ import annotations

import threading

import pytest

from mirrorkit.doctor.finding import Finding, guarded, of_message
from mirrorkit.errors import ClusterError


def test_the_findings_of_a_check_come_through():
    found = [Finding("a", "ok", "1"), Finding("a", "warning", "2", "cure")]
    assert guarded("a", lambda: found, seconds=5) == found


def test_a_check_that_raises_is_a_failure_of_its_name_with_what_it_found_before():
    def check():
        yield Finding("disk", "ok", "the first half")
        raise ZeroDivisionError("by zero")

    first, second = guarded("disk", check, seconds=5)
    assert first.found == "the first half"
    assert (second.name, second.status) == ("disk", "failure")
    assert "ZeroDivisionError: by zero" in second.found
    assert second.cure


def test_an_error_of_mirrorkit_gives_what_was_found_and_the_cure():
    def check():
        raise ClusterError("Port 7 is in use. End the earlier run.")

    assert guarded("port", check, seconds=5) == [
        Finding("port", "failure", "Port 7 is in use.", "End the earlier run.")
    ]


def test_a_check_that_hangs_is_a_failure_and_what_comes_after_goes_on():
    answer = threading.Event()
    (found,) = guarded("data", lambda: [Finding("late", "ok", str(answer.wait(20)))], seconds=0.1)
    assert (found.name, found.status) == ("data", "failure")
    assert found.found == "The check of data has not answered for 0.1 s."
    answer.set()


@pytest.mark.parametrize(
    ("message", "found", "cure"),
    [
        ("One is 1. Two. Three.", "One is 1.", "Two. Three."),
        ("No answer within 1.5 s for a.b (x). Look.", "No answer within 1.5 s for a.b (x).", "Look."),
        ("None found: none. nvidia-smi shows it.", "None found: none.", "nvidia-smi shows it."),
        ("Only this", "Only this", "the usual"),
    ],
)
def test_the_first_sentence_of_a_message_is_what_was_found(message, found, cure):
    assert of_message("x", "failure", message, cure="the usual") == Finding("x", "failure", found, cure)
