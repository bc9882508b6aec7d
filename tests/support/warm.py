"""Processes that start with the heavy packages loaded: forks of a server that has imported them.

A program that a test starts is a process of its own, as a user's is, but it does not spend seconds
on torch and transformers. orderone is not loaded in the server: the program imports it itself, and
without the type checker of the tests. Tests of what is imported when start a plain Python instead.

`code(..., loaded=LIBRARY)` forks from a second server, itself a fork of the first, which has loaded
these modules too: a hundred examples of the documentation need not import the library again.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

HEAVY = ("numpy", "scipy.integrate", "scipy.stats", "pandas", "torch", "torch._dynamo")
MODELS = ("LlamaForCausalLM", "GPT2LMHeadModel", "AutoConfig")  # transformers loads them lazily
LIBRARY = ("orderone.planning", "orderone.measure", "orderone.sweeping", "orderone.training.train")


class WarmPython:
    """Run programs in forks of one server, which starts with the first of them."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def code(
        self, code: str, loaded: Sequence[str] = (), **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run `python -c code`, with the modules in `loaded` imported already."""
        return self._run({"code": code, "loaded": list(loaded)}, ["-c"], **options)

    def module(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run `python -m words...`."""
        return self._run({"module": words[0]}, words, **options)

    def _run(
        self,
        program: dict[str, Any],
        words: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> "subprocess.CompletedProcess[str]":
        if self._server is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._server = subprocess.Popen([sys.executable, __file__], **pipes)
            atexit.register(self._server.communicate)  # the server ends with its input
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, "stdout"), Path(folder, "stderr")]
            request = program | {
                "words": list(words),
                "folder": str(cwd or Path.cwd()),
                "variables": dict(os.environ if env is None else env),
                "streams": [str(path) for path in streams],
                "timeout": timeout,
            }
            print(json.dumps(request), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()
            assert answer, "the server of warm processes has ended"
            returncode = json.loads(answer)
            output, errors = (path.read_text() for path in streams)
        if returncode is None:
            raise subprocess.TimeoutExpired(list(words), timeout, output, errors)
        return subprocess.CompletedProcess(list(words), returncode, output, errors)


WARM = WarmPython()


def spawn(function: Callable[..., None], args: tuple[str, ...], nprocs: int) -> None:
    """Call `function(rank, *args)` in `nprocs` processes, as torch's `spawn` does.

    They are forks of a process that has loaded torch and the library, and has run nothing yet.
    `function` is one of a module in this folder.
    """
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from torch.multiprocessing import start_processes
from {function.__module__} import {function.__name__}
start_processes({function.__name__}, args={args!r}, nprocs={nprocs}, start_method="fork")
"""
    ended = WARM.code(code, loaded=LIBRARY, timeout=280)
    assert ended.returncode == 0, ended.stderr


def orderone(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a process of its own."""
    return WARM.module("orderone", *words, **options)


# --- the server -----------------------------------------------------------------------------------


def serve() -> None:
    """Load the heavy packages; fork for every request and reply with the exit code."""
    sys.path.pop(0)  # this folder
    for name in HEAVY:
        importlib.import_module(name)
    transformers = importlib.import_module("transformers")
    for name in MODELS:
        getattr(transformers, name)
    _answer(sys.stdin, os.fdopen(os.dup(1), "w"))


def _answer(requests: IO[str], replies: IO[str], loaded: Sequence[str] = ()) -> None:
    """Fork for every request, or pass it on to a server that has loaded more."""
    gc.freeze()  # children share the memory of what is loaded
    others: dict[tuple[str, ...], tuple[IO[str], IO[str]]] = {}
    for line in requests:
        request = json.loads(line)
        wanted = tuple(request.get("loaded", ()))
        if wanted != tuple(loaded):
            if wanted not in others:
                others[wanted] = _server_with(wanted, replies)
            to_server, from_server = others[wanted]
            print(line.strip(), file=to_server, flush=True)
            print(from_server.readline().strip(), file=replies, flush=True)
            continue
        child = os.fork()
        if child == 0:
            replies.close()
            os._exit(_become(request))
        print(json.dumps(_wait(child, request["timeout"])), file=replies, flush=True)


def _server_with(modules: Sequence[str], replies: IO[str]) -> tuple[IO[str], IO[str]]:
    """Fork a server that loads `modules`; return its input and its output."""
    requests_end, to_server = os.pipe()
    from_server, replies_end = os.pipe()
    if os.fork() == 0:
        os.close(to_server)
        os.close(from_server)
        replies.close()
        for name in modules:
            importlib.import_module(name)
        _answer(os.fdopen(requests_end), os.fdopen(replies_end, "w"), modules)
        os._exit(0)
    os.close(requests_end)
    os.close(replies_end)
    return os.fdopen(to_server, "w"), os.fdopen(from_server)


def _wait(child: int, timeout: float) -> int | None:
    """Return the exit code of a child, or None if it had to be killed."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become(request: dict[str, Any]) -> int:
    """Run the program with its streams, variables, folder and arguments; return its exit code."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(request["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdin = os.fdopen(0, closefd=False)
    encoding = request["variables"].get("PYTHONIOENCODING")
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding=encoding)
    sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"] if "module" in request else "")
    sys.argv = request["words"]
    try:
        _execute(request)
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    # What an interpreter does at its end, without taking apart the packages of the server.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


def _execute(request: dict[str, Any]) -> None:
    if "module" in request:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve()
    os._exit(0)  # an interpreter that ends takes every module apart
