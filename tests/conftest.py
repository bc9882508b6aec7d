"""What all tests share: a browser, processes that can be interrupted, and limits of time."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOUR = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than `timeout` in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HOUR))


@pytest.fixture(scope="session")
def browser():
    """One browser for all pages: a process can hold only one playwright at a time."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(NAMES)} is on the PATH")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start processes that Ctrl-C reaches, with pipes for their output. Those that still run after
    the test are killed.

    A shell makes its background jobs ignore Ctrl-C, and children inherit this: `make test &` would
    wait for ever for a process that was told to stop.
    """
    started: list[subprocess.Popen[str]] = []

    def listen() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def begin(words: list[str], **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(words, preexec_fn=listen, **pipes | options)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()
