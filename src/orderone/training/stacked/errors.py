"""Errors for models that cannot be stacked, steps that cannot be captured, failed compilations;
and a test for errors of torch that say that memory is too small."""

import torch

from orderone.core.errors import InputError

CPU_ALLOCATOR = "DefaultCPUAllocator"  # torch has no class for its errors


class NotStackable(InputError):  # noqa: N818
    """Models that cannot be trained in one program; the message names the module or tensor.

    They can still be trained one after another (`stacked=False`).
    """


class NotCapturable(RuntimeError):  # noqa: N818
    """A step that depends on more than tensors, so that a CUDA graph would repeat old values."""


class NotCompiled(RuntimeError):  # noqa: N818
    """A pass that torch.compile cannot compile; the message has the error of torch."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch could not allocate memory, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)
