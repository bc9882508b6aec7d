"""Devices by one name each: "cuda" is the current one, with its number, so that nothing is held
there twice."""

from typing import Any

import torch


def read_device(given: Any) -> torch.device:
    """The device that `given` names, by default the CPU; a ValueError where there is none of this
    name."""
    try:
        device = torch.device("cpu" if given is None else given)
        if device.type != "cpu":
            device = torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device: expected 'cpu', 'cuda' or another that is here, got {given!r} ({reason})"
        ) from error
    return device
