"""Errors for models that cannot be trained in one program, and steps that CUDA cannot capture."""

from orderone.core.errors import InputError


class NotStackable(InputError):  # noqa: N818
    """Models that cannot be trained in one program; the message names the module or tensor.

    They can still be trained one after another (`stacked=False`).
    """


class NotCapturable(RuntimeError):  # noqa: N818
    """A step that depends on more than tensors, so that a CUDA graph would repeat old values."""
