"""Random calls of the theory API answer within ten seconds, or raise with a message."""

import subprocess
import sys

import pytest
from support import theory_calls


def failures(first: int, last: int) -> str:
    """Make the calls without the type checks of the test suite; return those that fail."""
    command = [sys.executable, theory_calls.__file__, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_300_calls_answer_or_refuse():
    assert failures(0, 300) == ""


@pytest.mark.slow
def test_10_000_calls_answer_or_refuse():
    assert failures(1000, 11_000) == ""
