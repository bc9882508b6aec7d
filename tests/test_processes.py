"""Processes that tests start can be interrupted, also if the tests run in the background, and end
with their test."""

import signal
import subprocess
import sys

import pytest

SLEEP = "import time; print('awake', flush=True); time.sleep(600)"


@pytest.fixture
def background():
    """Ignore Ctrl-C, as a shell makes its background jobs do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_child_receives_ctrl_c_in_the_background(background, start):
    process = start([sys.executable, "-c", SLEEP])
    assert process.stdout.readline().strip() == "awake"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


@pytest.fixture
def left_over():
    """List of processes that must have ended after the teardown of `start`.

    Its teardown runs before that of this fixture.
    """
    processes: list[subprocess.Popen[str]] = []
    yield processes
    assert all(process.poll() is not None for process in processes)


def test_no_child_outlives_its_test(left_over, start):
    left_over.append(start([sys.executable, "-c", SLEEP]))
    assert left_over[0].poll() is None
