"""Limits of sampled attention: its tangent kernel if scores are so large that a softmax is a step.

The derivative of a softmax then differs from 0 only where two scores nearly agree. Few points are
there, and C_Q C_K multiplies the error of the average over them, while Theta grows as its root.
"""

import sys
import warnings

from orderone.core.errors import InputError, with_code

INACCURATE = 0.1  # relative error of Theta, from which a warning says so
UNKNOWN = 0.5  # relative error of Theta, from which there is no answer
PACKAGE = __name__.split(".", maxsplit=1)[0]


def check_sharpness(error: float, strength: float) -> None:
    """Warn if the bound `error` of Theta is large; raise an InputError if Theta is unknown."""
    if not error > INACCURATE:
        return
    text = (
        f"attention with C_Q C_K = {strength:.3g}: its scores are so large that {{}};"
        " choose smaller C['Q'] and C['K']. Kernels without tangent kernels are not affected."
    )
    if error > UNKNOWN:
        raise InputError(
            text.format("the error of the sampled tangent kernel is as large as the kernel"),
            "sharp-attention",
            argument="C",
        )
    message = text.format(f"the error of the tangent kernel is {100 * error:.0f} %")
    warnings.warn(with_code(message, "sharp-attention"), stacklevel=_level_of_the_user())


def _level_of_the_user() -> int:
    """Return the stack level, for the caller of this function, of the first line outside."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] == PACKAGE and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    return level
