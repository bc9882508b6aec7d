"""Options that would have no effect are wrong input: the user believes that they have one."""


def no_use(whose: str, takes: str = "", /, **options: object) -> None:
    """Raise a ValueError for the first option that is set, not None or False.

    `takes` says what to do instead.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            hint = ""
            if takes:
                hint = f" ({takes})"
            raise ValueError(
                f"{name}: {whose} has no use for {option}{hint}, got {value!r}; leave it out"
            )
