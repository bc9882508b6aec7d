"""Options that would have no effect are wrong input: whoever gives one believes that it has."""


def no_use(whose: str, takes: str = "", /, **given: object) -> None:
    """A ValueError for the first option that was given; None and False are what nobody gave.
    `takes` says what would do."""
    for name, value in given.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            hint = f" ({takes})" if takes else ""
            raise ValueError(
                f"{name}: {whose} has no use for {option}{hint}, got {value!r}; leave it out"
            )
