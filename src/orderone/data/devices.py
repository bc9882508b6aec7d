"""Devices by one name each.

"cuda" becomes the current GPU, with its number, so that nothing is held there twice.
"""

import torch

from orderone.data.inputs import Device


def read_device(name: Device) -> torch.device:
    """Return the device of this name, by default the CPU; a ValueError where there is none."""
    try:
        device = torch.device("cpu" if name is None else name)
        if device.type != "cpu":
            device = torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device: expected 'cpu', 'cuda' or another that is here, got {name!r} ({reason})"
        ) from error
    return device
