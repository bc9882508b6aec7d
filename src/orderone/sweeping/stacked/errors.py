"""What keeps models from being trained in one program."""


class NotStackable(ValueError):  # noqa: N818
    """The message names the offender. Such members can still be trained one after another."""
