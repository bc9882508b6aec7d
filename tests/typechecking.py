"""The run-time type checker of the test suite: beartype, except for what users pass.

Functions validate the values that users pass and raise errors that say what to do; a type checker
in front of them would raise its own. `UserInput` marks the types of such values.
"""

from typing import Annotated, Any, get_args, get_origin

from beartype import beartype


def checked(function: Any) -> Any:
    """Check calls of `function` with beartype; accept anything where users pass a value."""
    hints = getattr(function, "__annotations__", {})
    if any(_from_a_user(hint) for hint in hints.values()):
        accepted = {name: _without_user_inputs(hint) for name, hint in hints.items()}
        function.__annotations__ = accepted
    return beartype(function)


def _without_user_inputs(hint: Any) -> Any:
    return Any if _from_a_user(hint) else hint


def _from_a_user(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        # by name: orderone itself is imported through this checker
        marks = [getattr(mark, "__name__", "") for mark in get_args(hint)[1:]]
        if "UserInput" in marks:
            return True
    return any(_from_a_user(part) for part in get_args(hint) if not isinstance(part, str))
