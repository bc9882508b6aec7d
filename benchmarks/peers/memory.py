"""Memory of this process, for benchmarks in any Python: only the standard library is imported.

The counters are those of Linux for this process alone. `ru_maxrss` is not used, because a process
inherits it from the one that started it.

    mark = Mark()        after all imports, with the model and the inputs in memory
    work()
    mark.growth()        highest memory since the mark, beyond that at the mark
    mark.peak()          highest memory since the start or the last `forget`
    mark.forget()        lets the highest memory begin anew; the mark stays
"""

from pathlib import Path

MIB = 1024
FORGET_PEAK = "5"  # see proc_pid_clear_refs(5)


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / MIB
    raise RuntimeError(f"/proc/self/status: expected a line {name}, got none; use Linux")


class Mark:
    """Memory of the process now, in MiB."""

    def __init__(self) -> None:
        self.start = _status("VmRSS")
        self.highest = _status("VmHWM")
        self.forget()

    def forget(self) -> None:
        """Let the highest memory begin anew."""
        self.highest = max(self.highest, _status("VmHWM"))
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK)

    def growth(self) -> float:
        """Return the highest memory since `forget`, or the mark, beyond that at the mark."""
        return _status("VmHWM") - self.start

    def peak(self) -> float:
        """Return the highest memory since the process began."""
        return max(self.highest, _status("VmHWM"))
