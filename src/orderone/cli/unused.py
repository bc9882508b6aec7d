"""Refuse options that would have no effect: the user believes that they have one."""

from orderone.core.errors import InputError


def refuse_unused(whose: str, remedy: str = "leave it out", /, **options: object) -> None:
    """Raise an InputError for the first option that is set, i.e. neither None nor False.

    `whose` names what ignores the option; `remedy` says what to do.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            message = f"{option} {value!r} has no effect with {whose}; {remedy}"
            if value is True:
                message = f"{option} has no effect with {whose}; {remedy}"
            raise InputError(message, "option-without-effect", argument=name)
