"""What keeps models from being trained in one program, or a program from being captured."""


class NotStackable(ValueError):  # noqa: N818
    """The message names the offender. Such members can still be trained one after another."""


class NotCapturable(RuntimeError):  # noqa: N818
    """What depends on more than tensors: a CUDA graph would not see it."""
