"""Matrices with orthonormal rows, or columns if these are shorter, times a gain.

    fan_out <= fan_in    W W^T = 1                      entries of size 1 / sqrt(fan_in)
    fan_out > fan_in     W^T W = fan_out / fan_in 1     entries of the same size

All directions of the input that are not lost grow alike. The gain makes the size of the entries
that of `fan-in`. Saxe, McClelland & Ganguli 2014, "Exact solutions to the nonlinear dynamics of
learning in deep linear neural networks", arXiv:1312.6120, section 3. Each of several matrices that
lie side by side (gates, queries and keys, experts) is orthogonal by itself. Lookup tables are
normal, as with `fan-in`.
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import ORTHOGONAL, Facts, Start, order_one


def _size(tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    return order_one(tensor)


ORTHOGONAL_START = Start(
    "orthogonal",
    "Saxe, McClelland & Ganguli 2014, section 3",
    "orthonormal rows or columns with entries of size 1/sqrt(fan_in)",
    _size,
    ORTHOGONAL,
)
