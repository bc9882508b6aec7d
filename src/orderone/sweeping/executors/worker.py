"""Worker process: `python -m orderone.sweeping.executors.worker FD`.

It trains the units that it receives, and does not write the store. It is a separate program, not a
fork and not a second run of the user's script: scripts need no `if __name__ == "__main__"`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderone.sweeping.engine import Engine
    from orderone.sweeping.trial import Trial


def main(descriptor: int) -> None:
    pipe = Connection(descriptor)
    try:
        _serve(pipe, pipe.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the sweep has ended
        os._exit(1)


def _serve(pipe: Connection, setup: Mapping[str, Any]) -> None:
    sys.path[:] = setup["path"]
    import torch

    from orderone.sweeping.executors.parcel import unwrapped
    from orderone.training import interrupts
    from orderone.training.stacked.errors import NotStackable

    torch.set_num_threads(setup["threads"])
    try:
        engine = unwrapped(pipe.recv_bytes())
        engine = replace(engine, job=replace(engine.job, device=setup["device"]))
    except Exception as error:  # the module of `build` may be missing here, or raise anything
        pipe.send(("broken", f"{type(error).__name__}: {error}"))
        return
    with interrupts.deferred():
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
