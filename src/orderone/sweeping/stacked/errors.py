"""What keeps models from being trained in one program."""


class NotStackable(ValueError):
    """The message names the offender. Such members can still be trained one after another."""
