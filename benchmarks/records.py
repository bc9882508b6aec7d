"""Measured times as JSON with versions, device, medians and intervals; `compare.py` reads it."""

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from statistics import median

import torch

PACKAGES = (
    *("orderone", "torch", "numpy", "scipy", "transformers", "triton"),
    *("mup", "optuna", "torchsde"),  # peers
)
CPU = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device() -> dict[str, object]:
    """Return what times depend on."""
    facts: dict[str, object] = {"cpu": processor()}
    facts["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def processor() -> str:
    """Return the name of the processor; where Linux does not tell, its architecture."""
    if CPU.exists():
        for line in CPU.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Records:
    """Times by name, in seconds; `path` is written after every one, so that a cut run counts."""

    def __init__(self, path: str | None = None):
        self.path: Path | None = Path(path) if path else None
        self.found: dict[str, dict[str, object]] = {}

    def add(self, name: str, seconds: Sequence[float], **facts: object) -> None:
        """Add the samples of one benchmark; the interval is their range (at least three)."""
        self.found[name] = {
            "median": median(seconds),
            "low": min(seconds),
            "high": max(seconds),
            "samples": len(seconds),
            **facts,
        }
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        content = {"versions": versions(), "device": device(), "seconds": self.found}
        self.path.write_text(json.dumps(content, indent=1) + "\n")
