"""Starts: initial sizes at the size of the base, as data. One file each, with source and formula.

`planning` joins a start with the tensors of a model; a rule carries the sizes to other widths.
"""

from orderone.core.errors import one_of
from orderone.core.inputs import Name
from orderone.rules.starts.completep import COMPLETEP
from orderone.rules.starts.fan_in import FAN_IN
from orderone.rules.starts.keep import KEEP
from orderone.rules.starts.orthogonal import ORTHOGONAL_START
from orderone.rules.starts.start import CONSTANT, NORMAL, ORTHOGONAL, Facts, Start, order_one
from orderone.rules.starts.strategies import HYBRID, MAXIMAL_UPDATE, NEURAL_TANGENT
from orderone.rules.starts.xavier import XAVIER
from orderone.rules.starts.zero_readout import ZERO_READOUT
from orderone.rules.starts.zero_residual import ZERO_RESIDUAL

STARTS: dict[str, Start] = {
    start.name: start
    for start in (
        KEEP,
        FAN_IN,
        XAVIER,
        ORTHOGONAL_START,
        ZERO_READOUT,
        ZERO_RESIDUAL,
        COMPLETEP,
        NEURAL_TANGENT,
        HYBRID,
        MAXIMAL_UPDATE,
    )
}


def names() -> tuple[str, ...]:
    """Return the names of all starts."""
    return tuple(STARTS)


def get(name: Name) -> Start:
    """Return a start by its name."""
    return STARTS[one_of(name, STARTS, "init")]


__all__ = [
    "CONSTANT",
    "NORMAL",
    "ORTHOGONAL",
    "STARTS",
    "Facts",
    "Start",
    "get",
    "names",
    "order_one",
]
