"""Fixtures of all tests: a browser, processes that can be interrupted, limits of time."""

import gc
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis
import pytest
from support import typechecking

typechecking.install("orderone")

# On a busy machine an example may take any time; `timeout` in pyproject.toml limits whole tests.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

NAMES = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no browser"
HOW_TO_INSTALL = f"""They need playwright (pip install 'playwright>=1.50') and a browser, one of
{", ".join(NAMES)}, on the PATH; on Debian: apt-get install chromium"""
HOUR = 3600


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the modules that tests import: it took a third of this time.

    While tests run, look for it less often than Python does, which took a tenth of their time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # modules and tests stay: later passes leave them out
        gc.set_threshold(50_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than `timeout` in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HOUR))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests were skipped for want of a browser, and how to install one."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_BROWSER in report.longrepr[2]
    ]
    if skipped:
        terminalreporter.section("browser")
        terminalreporter.line(f"{len(skipped)} tests were skipped: no browser on this machine.")
        terminalreporter.line(HOW_TO_INSTALL)


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> None:
    """Let sweeps forget what earlier tests of this process have trained.

    Otherwise they read batches and build models to compare with it, which some tests count.
    """
    for module, name in (("shared_state", "_BEGUN"), ("example_loss", "_OF_PROCESS")):
        loaded = sys.modules.get(f"orderone.sweeping.{module}")
        if loaded is not None:
            getattr(loaded, name).clear()


@pytest.fixture(scope="session")
def browser():
    """One browser for all pages: a process can hold only one playwright at a time."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason=f"{NO_BROWSER}: playwright is not installed"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"{NO_BROWSER}: none of {', '.join(NAMES)} is on the PATH")
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
