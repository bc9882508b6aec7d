"""Worker process: `python -m orderone.sweeping.executors.worker FD`.

It trains the units that it receives, and does not write the store. It is a separate program, not a
fork and not a second run of the user's script: scripts need no `if __name__ == "__main__"`.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderone.sweeping.engine import Engine
    from orderone.sweeping.trial import Trial


def main(descriptor: int) -> None:
    # Ctrl-C in a terminal reaches all processes of the sweep; the sweep itself ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(descriptor)
    try:
        _load_and_serve(pipe, pipe.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the sweep has ended
        os._exit(1)


def _load_and_serve(pipe: Connection, setup: Mapping[str, Any]) -> None:
    sys.path[:] = setup["path"]
    import torch

    from orderone.sweeping.executors.parcel import unwrapped

    torch.set_num_threads(setup["threads"])
    try:
        engine = unwrapped(pipe.recv_bytes())
        job = replace(engine.job, device=setup["device"], processes=setup["processes"])
        engine = replace(engine, job=job)
    except Exception as error:  # the module of `build` may be missing here, or raise anything
        pipe.send(("broken", f"{type(error).__name__}: {error}"))
        return
    serve(pipe, engine)


def serve(pipe: Connection, engine: "Engine") -> None:
    """Train units from the pipe until None comes; send their outcomes."""
    from orderone.training import interrupts
    from orderone.training.stacked.errors import NotStackable

    with interrupts.deferred():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not interrupts.pending() and (unit := pipe.recv()) is not None:
            try:
                _train(pipe, engine, unit)
            except KeyboardInterrupt:
                break
            except NotStackable as error:  # raised only if stacked=True
                pipe.send(("not stackable", error))


def _train(pipe: Connection, engine: "Engine", unit: Sequence["Trial"]) -> None:
    def report(step: int, losses: Mapping[str, float]) -> set[str]:
        pipe.send(("report", step, dict(losses)))
        return pipe.recv()

    for outcome in engine.run(unit, report):
        pipe.send(("outcome", outcome))
    pipe.send(("free",))


if __name__ == "__main__":
    main(int(sys.argv[1]))
