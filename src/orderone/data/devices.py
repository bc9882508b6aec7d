"""Resolve the name of a device.

"cuda" becomes the current GPU with its number, so that no tensor is copied there twice.
"""

import torch

from orderone.core.errors import InputError
from orderone.data.inputs import Device


def read_device(name: Device) -> torch.device:
    """Return the device (None: the CPU); raise an InputError if this machine does not have it."""
    try:
        device = torch.device("cpu" if name is None else name)
        if device.type != "cpu":
            device = torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        message = f"device: expected 'cpu', 'cuda' or another device of this machine; got {name!r}"
        raise InputError(f"{message} ({reason})", argument="device") from error
    return device
